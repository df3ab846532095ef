// The scalar level, which is the oracle of the others, and the list of levels.
#include "scores.h"

#include <cstring>

namespace kernel {
namespace {

float widen(uint16_t half) {
    // Sign and mantissa shift into place, which leaves the exponent 112 too small; one product by
    // 2^112 repairs it, subnormal numbers included. Rows are finite.
    uint32_t bits = (uint32_t(half & 0x8000) << 16) | (uint32_t(half & 0x7fff) << 13);
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value * 0x1p112f;
}

float load_half(const uint8_t* at) {
    uint16_t half;
    std::memcpy(&half, at, sizeof half);
    return widen(half);
}

float load_single(const uint8_t* at) {
    float value;
    std::memcpy(&value, at, sizeof value);
    return value;
}

void score_codes(const uint8_t* codes, int64_t width, const int8_t* query, const int32_t* rows,
                 int count, int32_t* scores) {
    for (int i = 0; i < count; i++) {
        const uint8_t* code = codes + rows[i] * width;
        int32_t sum = 0;
        for (int64_t j = 0; j < width; j++) sum += int32_t(code[j]) * query[j];
        scores[i] = sum;
    }
}

template <float (*load)(const uint8_t*), int bytes>
float score_row(const uint8_t* row, const float* query, int64_t dim) {
    float lanes[kLanes] = {};
    int64_t j = 0;
    for (; j + kLanes <= dim; j += kLanes)
        for (int lane = 0; lane < kLanes; lane++)
            lanes[lane] += load(row + (j + lane) * bytes) * query[j + lane];
    for (int lane = 0; j + lane < dim; lane++)
        lanes[lane] += load(row + (j + lane) * bytes) * query[j + lane];
    for (int half = kLanes / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; lane++) lanes[lane] += lanes[lane + half];
    return lanes[0];
}

std::vector<Level> all_levels() {
    std::vector<Level> found = vector_levels();
    found.push_back({"scalar", "scalar code", score_codes, block_scores, insert_keys,
                     score_row<load_half, 2>, score_row<load_single, 4>, nullptr});
    return found;
}

} // namespace

void pack_codes(const uint8_t* codes, int64_t width, const int32_t* rows, int count,
                uint8_t* block) {
    std::memset(block, 0, (width + 3) / 4 * 4 * kBlockCodes);
    for (int i = 0; i < count; i++) {
        const uint8_t* code = codes + rows[i] * width;
        int64_t j = 0;
        for (; j + 4 <= width; j += 4) std::memcpy(block + j * kBlockCodes + 4 * i, code + j, 4);
        if (j < width) std::memcpy(block + j * kBlockCodes + 4 * i, code + j, width - j);
    }
}

void insert_keys(int64_t* pool, int room, int64_t* keys, int count) {
    for (int k = 0; k < count; k++) {
        int64_t* place = pool; // of the first that is higher
        for (int left = room; left > 0;) {
            const int half = left / 2;
            const bool lower = place[half] < keys[k];
            place = lower ? place + half + 1 : place;
            left = lower ? left - half - 1 : half;
        }
        if (place == pool) continue;
        std::memmove(pool, pool + 1, (place - pool - 1) * sizeof *pool);
        place[-1] = keys[k];
    }
}

void widen_row(const uint8_t* row, int64_t dim, float* floats) {
    for (int64_t j = 0; j < dim; j++) floats[j] = load_half(row + 2 * j);
}

const std::vector<Level>& levels() {
    static const std::vector<Level> found = all_levels();
    return found;
}

#if !defined(__x86_64__) && !defined(__aarch64__)
std::vector<Level> vector_levels() { return {}; }
#endif

} // namespace kernel
