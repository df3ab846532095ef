#if defined(__aarch64__)

#include <arm_neon.h>

#define LANES 8
#include "level.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("dotprod"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("arch=armv8.2-a+dotprod")
#endif

namespace encoder {
namespace neon {

struct Halves {
  float32x4_t low, high;
};

static inline __attribute__((always_inline)) Floats multiply_add(Floats a, Floats b, Floats c) {
  Halves x, y, z;
  memcpy(&x, &a, sizeof x);
  memcpy(&y, &b, sizeof y);
  memcpy(&z, &c, sizeof z);
  z.low = vfmaq_f32(z.low, x.low, y.low);
  z.high = vfmaq_f32(z.high, x.high, y.high);
  memcpy(&c, &z, sizeof c);
  return c;
}

// Weights are made signed before they are multiplied.
constexpr int32_t MIDDLE = 0;

// R rows, 16 columns.
template <int R>
inline __attribute__((always_inline)) void tile(const int8_t* a, int64_t a_stride,
                                                const uint8_t* panel, int64_t stride, int steps,
                                                int32_t* out, int64_t out_stride) {
  const uint8x16_t middle = vdupq_n_u8(128);
  int32x4_t sums[R][4];
  for (int r = 0; r < R; r++)
    for (int v = 0; v < 4; v++) sums[r][v] = vdupq_n_s32(0);
  for (int k = 0; k < steps; k++) {
    int8x16_t weights[4];
    for (int v = 0; v < 4; v++)
      weights[v] = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(panel + k * stride + 16 * v), middle));
    for (int r = 0; r < R; r++) {
      int32_t four;
      memcpy(&four, a + r * a_stride + 4 * k, 4);
      const int8x16_t digits = vreinterpretq_s8_s32(vdupq_n_s32(four));
      for (int v = 0; v < 4; v++) sums[r][v] = vdotq_s32(sums[r][v], weights[v], digits);
    }
  }
  for (int r = 0; r < R; r++)
    for (int v = 0; v < 4; v++) vst1q_s32(out + r * out_stride + 4 * v, sums[r][v]);
}

#define ROWS 4
#include "tiles.h"

#include "encode.h"

}  // namespace neon

void encode_neon(const Network& network, const Texts& texts) { neon::run(network, texts); }

}  // namespace encoder

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
