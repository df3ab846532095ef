// NEON with the dot products of ARMv8.2.
#if defined(__aarch64__)

#include "scores.h"

#include <arm_neon.h>
#include <cstring>
#if defined(__linux__)
#include <sys/auxv.h>
#endif

#if defined(__clang__)
#define DOTPROD __attribute__((target("dotprod")))
#else
#define DOTPROD __attribute__((target("arch=armv8.2-a+dotprod")))
#endif

namespace kernel {
namespace {

// The instruction multiplies signed bytes: codes are scored as code - 128, and 128 times the sum
// of the query is added at the end.
DOTPROD void codes_neon(const uint8_t* codes, int64_t width, const int8_t* query,
                        const int32_t* rows, int count, int32_t* scores) {
    int32_t shift = 0;
    for (int64_t j = 0; j < width; j++) shift += query[j];
    shift *= 128;
    const uint8x16_t middle = vdupq_n_u8(128);
    const int64_t end = width - width % 16;
    for (int i = 0; i < count; i++) {
        const uint8_t* code = codes + rows[i] * width;
        int32x4_t sums = vdupq_n_s32(0);
        for (int64_t j = 0; j < end; j += 16)
            sums = vdotq_s32(sums, vreinterpretq_s8_u8(veorq_u8(vld1q_u8(code + j), middle)),
                             vld1q_s8(query + j));
        if (end < width) {
            uint8_t rest[16] = {};
            std::memcpy(rest, code + end, width - end);
            sums = vdotq_s32(sums, vreinterpretq_s8_u8(veorq_u8(vld1q_u8(rest), middle)),
                             vld1q_s8(query + end));
        }
        scores[i] = vaddvq_s32(sums) + shift;
    }
}

template <bool half>
float32x4_t load_four(const uint8_t* row) {
    if (!half) return vreinterpretq_f32_u8(vld1q_u8(row));
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(row)));
}

template <bool half>
float row_neon(const uint8_t* row, const float* query, int64_t dim) {
    constexpr int bytes = half ? 2 : 4;
    float32x4_t lanes[8];
    for (float32x4_t& lane : lanes) lane = vdupq_n_f32(0);
    uint8_t rest[kLanes * bytes] = {};
    for (int64_t j = 0; j < dim; j += kLanes, row += kLanes * bytes) {
        const uint8_t* from = row;
        if (j + kLanes > dim) {
            std::memcpy(rest, row, (dim - j) * bytes);
            from = rest;
        }
        for (int l = 0; l < 8; l++)
            lanes[l] = vaddq_f32(lanes[l], vmulq_f32(load_four<half>(from + 4 * l * bytes),
                                                     vld1q_f32(query + j + 4 * l)));
    }
    for (int half_of = 4; half_of > 0; half_of /= 2)
        for (int l = 0; l < half_of; l++) lanes[l] = vaddq_f32(lanes[l], lanes[l + half_of]);
    float32x2_t two = vadd_f32(vget_low_f32(lanes[0]), vget_high_f32(lanes[0]));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

bool has_dot_products() {
#if defined(__linux__)
    return getauxval(AT_HWCAP) & (1ul << 20); // HWCAP_ASIMDDP
#elif defined(__APPLE__)
    return true; // every Apple processor that runs macOS
#else
    return false;
#endif
}

} // namespace

std::vector<Level> vector_levels() {
    if (!has_dot_products()) return {};
    return {{"neon", "NEON", codes_neon, block_scores, insert_keys, row_neon<true>,
             row_neon<false>, nullptr}};
}

} // namespace kernel

#endif
