// The tiles of a level whose registers hold the sums of ROWS rows of 16 columns, by its `tile`.
//
// No include guard: it is included by each such level.

template <int V>
struct Tiles {
  static void run(const int8_t* a, int64_t a_stride, int rows, const uint8_t* panel, int64_t stride,
                  int steps, int32_t* out, int64_t out_stride) {
    const auto go = [&](auto count) {
      constexpr int R = decltype(count)::value;
      for (; rows >= R; rows -= R) {
        for (int v = 0; v < V; v++)
          tile<R>(a, a_stride, panel + 64 * v, stride, steps, out + COLUMNS * v, out_stride);
        a += R * a_stride, out += R * out_stride;
      }
    };
    go(std::integral_constant<int, ROWS>());
    go(std::integral_constant<int, 2>());
    go(std::integral_constant<int, 1>());
  }
};
