// The oracle of the other levels, in plain loops.
#define LANES 16
#include "level.h"

namespace encoder {
namespace scalar {

static inline Floats multiply_add(Floats a, Floats b, Floats c) {
  Floats sum;
  for (int i = 0; i < LANES; i++) sum[i] = std::fma(a[i], b[i], c[i]);
  return sum;
}

constexpr int32_t MIDDLE = 128;  // is added to each weight

template <int V>
struct Tiles {
  static void run(const int8_t* a, int64_t a_stride, int rows, const uint8_t* panel, int64_t stride,
                  int steps, int32_t* out, int64_t out_stride) {
    for (int r = 0; r < rows; r++)
      for (int n = 0; n < COLUMNS * V; n++) {
        int32_t total = 0;
        for (int k = 0; k < 4 * steps; k++)
          total += a[r * a_stride + k] * panel[k / 4 * stride + 4 * n + k % 4];
        out[r * out_stride + n] = total;
      }
  }
};

#include "encode.h"

}  // namespace scalar

void encode_scalar(const Network& network, const Texts& texts) { scalar::run(network, texts); }

}  // namespace encoder
