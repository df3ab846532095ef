// multiply_add and the tiles of a level with registers of 512 bits, by its `dot`: sums of four products.
//
// No include guard: it is included by each such level.

constexpr int32_t MIDDLE = 128;  // is added to each weight

static inline __attribute__((always_inline)) Floats multiply_add(Floats a, Floats b, Floats c) {
  return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}

template <int R, int V>
inline __attribute__((always_inline)) void tile(const int8_t* a, int64_t a_stride,
                                                const uint8_t* panel, int64_t stride, int steps,
                                                int32_t* out, int64_t out_stride) {
  __m512i sums[R][V];
  for (int r = 0; r < R; r++)
    for (int v = 0; v < V; v++) sums[r][v] = _mm512_setzero_si512();
  for (int k = 0; k < steps; k++) {
    __m512i weights[V];
    for (int v = 0; v < V; v++) weights[v] = _mm512_loadu_si512(panel + k * stride + 64 * v);
    for (int r = 0; r < R; r++) {
      int32_t four;
      memcpy(&four, a + r * a_stride + 4 * k, 4);
      const __m512i digits = _mm512_set1_epi32(four);
      for (int v = 0; v < V; v++) sums[r][v] = dot(sums[r][v], weights[v], digits);
    }
  }
  for (int r = 0; r < R; r++)
    for (int v = 0; v < V; v++)
      _mm512_storeu_si512(out + r * out_stride + COLUMNS * v, sums[r][v]);
}

// As many rows at a time as there are registers for their sums.
template <int V>
struct Tiles {
  static void run(const int8_t* a, int64_t a_stride, int rows, const uint8_t* panel, int64_t stride,
                  int steps, int32_t* out, int64_t out_stride) {
    const auto go = [&](auto count) {
      constexpr int R = decltype(count)::value;
      for (; rows >= R; rows -= R) {
        tile<R, V>(a, a_stride, panel, stride, steps, out, out_stride);
        a += R * a_stride, out += R * out_stride;
      }
    };
    go(std::integral_constant<int, (V > 2 ? 6 : 12)>());
    go(std::integral_constant<int, 4>());
    go(std::integral_constant<int, 2>());
    go(std::integral_constant<int, 1>());
  }
};
