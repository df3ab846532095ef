// The products of AVX-512 VNNI in registers of 256 bits: desktop and mobile processors have them
// without AVX-512. By gcc alone, because clang cannot ask whether the processor has them.
// VNNI_BY_AVX512 lets the same code be tried where there is AVX-512 alone.
#if defined(__x86_64__) && !defined(__clang__) && __GNUC__ >= 11

#include <immintrin.h>

#define LANES 8
#include "level.h"

#if defined(VNNI_BY_AVX512)
#define dot _mm256_dpbusd_epi32
#else
#define dot _mm256_dpbusd_avx_epi32
#endif

#pragma GCC push_options
#if defined(VNNI_BY_AVX512)
#pragma GCC target("avx2,fma,avx512vl,avx512vnni")
#else
#pragma GCC target("avx2,fma,avxvnni")
#endif

namespace encoder {
namespace avxvnni {

static inline __attribute__((always_inline)) Floats multiply_add(Floats a, Floats b, Floats c) {
  return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}

// R rows, 16 columns.
template <int R>
inline __attribute__((always_inline)) void tile(const int8_t* a, int64_t a_stride,
                                                const int32_t* offsets, const uint8_t* panel,
                                                int64_t stride, int steps, int32_t* out,
                                                int64_t out_stride) {
  __m256i sums[R][2];
  for (int r = 0; r < R; r++) sums[r][0] = sums[r][1] = _mm256_set1_epi32(-offsets[r]);
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

template <int V>
struct Tiles {
  static void run(const int8_t* a, int64_t a_stride, const int32_t* offsets, int rows,
                  const uint8_t* panel, int64_t stride, int steps, int32_t* out,
                  int64_t out_stride) {
    const auto go = [&](auto count) {
      constexpr int R = decltype(count)::value;
      for (; rows >= R; rows -= R) {
        for (int v = 0; v < V; v++)
          tile<R>(a, a_stride, offsets, panel + 64 * v, stride, steps, out + COLUMNS * v,
                  out_stride);
        a += R * a_stride, offsets += R, out += R * out_stride;
      }
    };
    go(std::integral_constant<int, 6>());
    go(std::integral_constant<int, 2>());
    go(std::integral_constant<int, 1>());
  }
};

#include "encode.h"

}  // namespace avxvnni

void encode_avxvnni(const Network& network, const Texts& texts) { avxvnni::run(network, texts); }

}  // namespace encoder

#pragma GCC pop_options
#endif
