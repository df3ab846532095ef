// multiply_add and the tiles of a level with registers of 256 bits, by its `dot`: sums of four products.
//
// No include guard: it is included by each such level.

constexpr int32_t MIDDLE = 128;  // is added to each weight

static inline __attribute__((always_inline)) Floats multiply_add(Floats a, Floats b, Floats c) {
  return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}

// R rows, 16 columns.
template <int R>
inline __attribute__((always_inline)) void tile(const int8_t* a, int64_t a_stride,
                                                const uint8_t* panel, int64_t stride, int steps,
                                                int32_t* out, int64_t out_stride) {
  __m256i sums[R][2];
  for (int r = 0; r < R; r++) sums[r][0] = sums[r][1] = _mm256_setzero_si256();
  for (int k = 0; k < steps; k++) {
    __m256i weights[2];
    for (int v = 0; v < 2; v++)
      weights[v] = _mm256_loadu_si256((const __m256i*)(panel + k * stride + 32 * v));
    for (int r = 0; r < R; r++) {
      int32_t four;
      memcpy(&four, a + r * a_stride + 4 * k, 4);
      const __m256i digits = _mm256_set1_epi32(four);
      for (int v = 0; v < 2; v++) sums[r][v] = dot(sums[r][v], weights[v], digits);
    }
  }
  for (int r = 0; r < R; r++)
    for (int v = 0; v < 2; v++)
      _mm256_storeu_si256((__m256i*)(out + r * out_stride + 8 * v), sums[r][v]);
}

#include "tiles.h"
