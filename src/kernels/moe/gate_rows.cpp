#include "kernels/moe/gate_rows.h"

#include <cmath>
#include <vector>

#include "base/vectorise.h"
#include "kernels/vector_math.h"
#include "kernels/vectors.h"

namespace hyperparallel::kernels::moe {
namespace {

// The k largest of `ranked`, the smaller id first among equals; ids rise.
template <class T>
HP_INLINE void choose(const T* ranked, int64_t experts, int64_t k, int64_t* ids, std::vector<T>& best) {
  int64_t count = 0;
  for (int64_t e = 0; e < experts; ++e) {
    const T value = ranked[e];
    if (count == k && !(value > best[k - 1])) continue;
    int64_t at = count < k ? count++ : k - 1;
    for (; at > 0 && value > best[at - 1]; --at) best[at] = best[at - 1], ids[at] = ids[at - 1];
    best[at] = value, ids[at] = e;
  }
  for (int64_t i = 1; i < k; ++i) {
    const int64_t id = ids[i];
    int64_t at = i;
    for (; at > 0 && ids[at - 1] > id; --at) ids[at] = ids[at - 1];
    ids[at] = id;
  }
}

}  // namespace

template <class T>
void gate_forward(const GateShape& shape, int64_t tokens, const T* logits, const T* bias, const T* bias_vl, const bool* image,
                  bool ids_are_given, T* scores, int64_t* ids, T* weights) {
  const int64_t experts = shape.experts, k = shape.k;
  const T inverse = T(1 / shape.temperature);
  std::vector<T> ranked(experts), best(k);
  vectorise([&]() __attribute__((always_inline)) {
    for (int64_t t = 0; t < tokens; ++t) {
      const T* __restrict logit = logits + t * experts;
      T* __restrict score = scores + t * experts;
      // softplus(x) = max(x, 0) + log(1 + exp(-|x|))
      for (int64_t e = 0; e < experts; ++e) {
        const T x = logit[e] * inverse, size = x < 0 ? -x : x;
        score[e] = std::sqrt((x > 0 ? x : T(0)) + vector_log1p(vector_exp(-size)));
      }
      int64_t* chosen = ids + t * k;
      if (!ids_are_given) {
        const T* __restrict added = image[t] ? bias_vl : bias;
        T* __restrict rank = ranked.data();
        for (int64_t e = 0; e < experts; ++e) rank[e] = score[e] + added[e];
        choose(rank, experts, k, chosen, best);
      }
      T sum = 0;
      for (int64_t i = 0; i < k; ++i) sum += score[chosen[i]];
      const T factor = shape.normalise && k > 1 ? T(shape.scale) / (sum + T(1e-20)) : T(shape.scale);
      for (int64_t i = 0; i < k; ++i) weights[t * k + i] = score[chosen[i]] * factor;
    }
  });
}

template <class T>
void gate_backward(const GateShape& shape, int64_t tokens, const T* logits, const T* scores, const int64_t* ids, const T* dscores,
                   const T* dweights, T* dlogits) {
  const int64_t experts = shape.experts, k = shape.k;
  const T inverse = T(1 / shape.temperature), scale = T(shape.scale);
  std::vector<T> gradient(experts);
  vectorise([&]() __attribute__((always_inline)) {
    for (int64_t t = 0; t < tokens; ++t) {
      const T *score = scores + t * experts, *dweight = dweights + t * k;
      const int64_t* chosen = ids + t * k;
      T* __restrict d = gradient.data();
      for (int64_t e = 0; e < experts; ++e) d[e] = dscores[t * experts + e];
      T sum = 0, along = 0;
      for (int64_t i = 0; i < k; ++i) sum += score[chosen[i]], along += dweight[i] * score[chosen[i]];
      const bool normalises = shape.normalise && k > 1;
      const T total = normalises ? sum + T(1e-20) : T(1), back = normalises ? along / total : T(0);
      for (int64_t i = 0; i < k; ++i) d[chosen[i]] += scale * (dweight[i] - back) / total;
      // score' = sigmoid(x) / (2 score); where the score vanished, so does its slope.
      const T* __restrict logit = logits + t * experts;
      const T* __restrict s = score;
      T* __restrict out = dlogits + t * experts;
      for (int64_t e = 0; e < experts; ++e) {
        const T x = logit[e] * inverse, size = x < 0 ? -x : x, small = vector_exp(-size);
        const T sigmoid = (x < 0 ? small : T(1)) / (T(1) + small);
        const T slope = sigmoid / (T(2) * s[e]) * inverse;
        out[e] = s[e] > 0 ? d[e] * slope : T(0);
      }
    }
  });
}

#define HP_INSTANTIATE(T)                                                                                                      \
  template void gate_forward<T>(const GateShape&, int64_t, const T*, const T*, const T*, const bool*, bool, T*, int64_t*, T*); \
  template void gate_backward<T>(const GateShape&, int64_t, const T*, const T*, const int64_t*, const T*, const T*, T*);
HP_INSTANTIATE(float)
HP_INSTANTIATE(double)
#undef HP_INSTANTIATE

}  // namespace hyperparallel::kernels::moe
