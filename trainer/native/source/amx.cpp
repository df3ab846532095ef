// AVX-512 VNNI with tiles for the products: a tile holds 16 rows of 64 bytes, and one instruction
// multiplies 16 rows of 64 digits by 16 columns of weights. By gcc alone, as avxvnni.cpp.
#include "network.h"
#if defined(ENCODER_HAS_AMX)

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LANES 16
#include "level.h"

#define dot _mm512_dpbusd_epi32

#pragma GCC push_options
#pragma GCC target( \
    "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,amx-tile,amx-int8,prefer-vector-width=512")

namespace encoder {
namespace amx {

// Its tiles are those of registers.
namespace vectors {
#include "avx512.h"
}
using vectors::MIDDLE;
using vectors::multiply_add;

constexpr int TILE = 16;  // rows of a tile, and groups of 4 bytes in a row

// What LDTILECFG reads: how many rows each tile has, and how many bytes each row.
struct alignas(64) Shapes {
  uint8_t palette = 1, start = 0, unused[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};
};

// The shapes of the tiles of this thread: rows · 16 + the steps behind the last whole tile; -1: none.
static thread_local int shaped = -1;

// Tiles 0 to 3 hold sums, 4 digits and 5 weights; 6 and 7 those of the steps behind the last whole tile.
static void shape(int rows, int rest) {
  if (shaped == rows * TILE + rest) return;
  shaped = rows * TILE + rest;
  Shapes shapes;
  for (int tile = 0; tile < (rest ? 8 : 6); tile++) {
    shapes.rows[tile] = (uint8_t)(tile == 5 ? TILE : tile == 7 ? rest : rows);
    shapes.bytes[tile] = (uint16_t)(tile == 6 ? 4 * rest : 64);
  }
  _tile_loadconfig(&shapes);
}

// The numbers of tiles are parts of the instructions.
#define EACH_COLUMN(CALL)      \
  CALL(0)                      \
  if constexpr (V > 1) CALL(1) \
  if constexpr (V > 2) CALL(2) \
  if constexpr (V > 3) CALL(3)

template <int V>
struct Tiles {
  static void run(const int8_t* a, int64_t a_stride, int rows, const uint8_t* panel, int64_t stride,
                  int steps, int32_t* out, int64_t out_stride) {
    const int together = std::min(rows, TILE), rest = steps % TILE;
    shape(together, rest);
    for (int first = 0; first < rows; first += together) {
      first = std::min(first, rows - together);  // the last rows may be computed twice
      const int8_t* digits = a + first * a_stride;
      const uint8_t* weights = panel;
      int32_t* sums = out + first * out_stride;
#define CLEAR(N) { _tile_zero(N); }
#define MULTIPLY(N) { _tile_loadd(5, weights + 64 * N, stride); _tile_dpbsud(N, 4, 5); }
#define MULTIPLY_REST(N) { _tile_loadd(7, weights + 64 * N, stride); _tile_dpbsud(N, 6, 7); }
#define STORE(N) { _tile_stored(N, sums + TILE * N, 4 * out_stride); }
      EACH_COLUMN(CLEAR)
      for (int k = 0; k + TILE <= steps; k += TILE, digits += 64, weights += TILE * stride) {
        _tile_loadd(4, digits, a_stride);
        EACH_COLUMN(MULTIPLY)
      }
      if (rest) {
        _tile_loadd(6, digits, a_stride);
        EACH_COLUMN(MULTIPLY_REST)
      }
      EACH_COLUMN(STORE)
    }
  }
};

// Those of attention have few steps, and to shape tiles takes as long as to multiply ten.
#define ATTENTION_TILES vectors::Tiles
#include "encode.h"

}  // namespace amx

// Linux lets a process use tiles once it has asked.
bool may_use_tiles() {
  constexpr int REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
  return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

void encode_amx(const Network& network, const Texts& texts) {
  amx::shaped = -1;
  amx::run(network, texts);
  _tile_release();
}

}  // namespace encoder

#pragma GCC pop_options
#endif
