// Copies past the caches.
//
// NOTE [Copies past the caches]: what another core will read is best not left modified in this core's caches: between the cores
// of the machine at hand it came from there at 2 GB/s and from memory at 10. What is larger than the caches need not be read into
// them to be overwritten either. Such stores are not ordered by what follows, a release store included, so the copy ends with a
// fence.
#pragma once

#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace hyperparallel::dist {

inline void copy_past_caches(char* to, const char* from, int64_t bytes) {
#if defined(__x86_64__)
  constexpr int64_t kLine = 64;
  const int64_t head = -reinterpret_cast<intptr_t>(to) & (kLine - 1);
  if (bytes >= 4096) {
    std::memcpy(to, from, head);
    to += head, from += head, bytes -= head;
    for (; bytes >= kLine; to += kLine, from += kLine, bytes -= kLine) {
      for (int64_t i = 0; i < kLine; i += 16) {
        _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
      }
    }
    _mm_sfence();
  }
#endif
  std::memcpy(to, from, bytes);
}

}  // namespace hyperparallel::dist
