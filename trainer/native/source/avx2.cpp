#if defined(__x86_64__)

#include <immintrin.h>

#define LANES 8
#include "level.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif

namespace encoder {
namespace avx2 {

static inline __attribute__((always_inline)) __m256i dot(__m256i sums, __m256i weights,
                                                         __m256i narrow) {
  const __m256i pairs = _mm256_maddubs_epi16(weights, narrow);
  return _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

#define ROWS 5
#include "avx2.h"

#include "encode.h"

}  // namespace avx2

void encode_avx2(const Network& network, const Texts& texts) { avx2::run(network, texts); }

}  // namespace encoder

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
