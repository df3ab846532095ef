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

static inline __attribute__((always_inline)) Floats multiply_add(Floats a, Floats b, Floats c) {
  return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}

// R rows, 16 columns. Weights and digits are multiplied as |digit| · (weight with its sign), because
// two products of an unsigned weight do not fit into 16 bits.
template <int R>
inline __attribute__((always_inline)) void tile(const int8_t* a, int64_t a_stride,
                                                const uint8_t* panel, int64_t stride, int steps,
                                                int32_t* out, int64_t out_stride) {
  const __m256i middle = _mm256_set1_epi8((char)128), ones = _mm256_set1_epi16(1);
  __m256i sums[R][2];
  for (int r = 0; r < R; r++) sums[r][0] = sums[r][1] = _mm256_setzero_si256();
  for (int k = 0; k < steps; k++) {
    __m256i weights[2];
    for (int v = 0; v < 2; v++)
      weights[v] = _mm256_xor_si256(
          _mm256_loadu_si256((const __m256i*)(panel + k * stride + 32 * v)), middle);
    for (int r = 0; r < R; r++) {
      int32_t four;
      memcpy(&four, a + r * a_stride + 4 * k, 4);
      const __m256i digits = _mm256_set1_epi32(four), sizes = _mm256_abs_epi8(digits);
      for (int v = 0; v < 2; v++) {
        __m256i pairs = _mm256_maddubs_epi16(sizes, _mm256_sign_epi8(weights[v], digits));
        sums[r][v] = _mm256_add_epi32(sums[r][v], _mm256_madd_epi16(pairs, ones));
      }
    }
  }
  for (int r = 0; r < R; r++)
    for (int v = 0; v < 2; v++)
      _mm256_storeu_si256((__m256i*)(out + r * out_stride + 8 * v), sums[r][v]);
}

#include "fours.h"

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
