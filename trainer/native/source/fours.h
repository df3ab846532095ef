// The tiles of a level with few registers: four rows at a time, by `tile` of the level.
//
// No include guard: it is included by each such level.

template <int V>
struct Tiles {
  static void run(const int8_t* a, int64_t a_stride, const int32_t*, int rows, const uint8_t* panel,
                  int64_t stride, int steps, int32_t* out, int64_t out_stride) {
    for (; rows >= 4; rows -= 4, a += 4 * a_stride, out += 4 * out_stride)
      for (int v = 0; v < V; v++)
        tile<4>(a, a_stride, panel + 64 * v, stride, steps, out + COLUMNS * v, out_stride);
    for (; rows; rows--, a += a_stride, out += out_stride)
      for (int v = 0; v < V; v++)
        tile<1>(a, a_stride, panel + 64 * v, stride, steps, out + COLUMNS * v, out_stride);
  }
};
