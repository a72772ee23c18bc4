// Vectors of N numbers as the compiler knows them, for loops that keep sums in registers. Loads and stores need no alignment.
#pragma once

#define HP_INLINE [[gnu::always_inline]] inline

namespace hyperparallel::kernels {

template <class T, int N>
struct Vector {
  typedef T type __attribute__((vector_size(N * sizeof(T)), aligned(alignof(T)), may_alias));
};
template <class T, int N>
using Vec = typename Vector<T, N>::type;

template <class T, int N>
HP_INLINE Vec<T, N> load(const T* from) {
  return *reinterpret_cast<const Vec<T, N>*>(from);
}
template <class T, int N>
HP_INLINE void store(T* to, Vec<T, N> v) {
  *reinterpret_cast<Vec<T, N>*>(to) = v;
}

}  // namespace hyperparallel::kernels
