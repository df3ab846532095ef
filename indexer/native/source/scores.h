// The inner products of a search, once for each instruction set.
//
// All levels agree bit for bit: the scores of codes are integers, and full-width scores are summed
// in the same 32 lanes, without fused multiply-add, and folded in the same order. So a score
// depends neither on the processor nor on the place of its row.
#pragma once

#include <cstdint>
#include <vector>

namespace kernel {

constexpr int kLanes = 32;     // partial sums of a full-width score; queries are padded to these
constexpr int kCodeBlock = 64; // quantized queries are padded with zeros to a multiple of this

// scores[i] = sum over j of query[j] * codes[rows[i] * width + j], for i < count.
// `query` is readable up to the next multiple of kCodeBlock and zero from `width` on.
using ScoreCodes = void (*)(const uint8_t* codes, int64_t width, const int8_t* query,
                            const int32_t* rows, int count, int32_t* scores);

constexpr int kBlockCodes = 64; // codes of a block

// Codes of these rows, at most kBlockCodes, as a block: bytes 0 to 3 of each code, then bytes 4 to 7
// and so on, with zeros behind `count` and `width`. `block` has room for kBlockCodes codes, each
// padded to a multiple of kCodeBlock.
void pack_codes(const uint8_t* codes, int64_t width, const int32_t* rows, int count,
                uint8_t* block);

// scores[i] of all codes of a block, as ScoreCodes; returns which of them are above `least`.
using ScoreBlock = uint64_t (*)(const uint8_t* block, int64_t width, const int8_t* query,
                                int32_t least, int32_t* scores);

// The inner product of a stored row of `dim` numbers, at any byte address, and a query, which is
// padded with zeros to a multiple of kLanes.
using ScoreRow = float (*)(const uint8_t* row, const float* query, int64_t dim);

// The inner products of one row of `dim` floats, a multiple of kLanes, and four queries.
using ScoreFour = void (*)(const float* row, const float* const* queries, int64_t dim,
                           float* scores);

// out[j] -= the sum of weights[i] * rows[i * stride + j] over i < count, for j < dim; one row after
// the other, so that the order of the sums is the same at all levels.
using SubtractRows = void (*)(const float* rows, int64_t stride, const float* weights,
                              int64_t count, int64_t dim, float* out);

// The loop of SubtractRows, which the compiler vectorises for the instruction set of its caller.
__attribute__((always_inline)) inline void subtract_rows(const float* rows, int64_t stride,
                                                         const float* weights, int64_t count,
                                                         int64_t dim, float* __restrict out) {
    int64_t i = 0;
    for (; i + 4 <= count; i += 4) {
        const float *a = rows + i * stride, *b = a + stride, *c = b + stride, *d = c + stride;
        for (int64_t j = 0; j < dim; j++)
            out[j] = out[j] - weights[i] * a[j] - weights[i + 1] * b[j] - weights[i + 2] * c[j] -
                     weights[i + 3] * d[j];
    }
    for (; i < count; i++)
        for (int64_t j = 0; j < dim; j++) out[j] = out[j] - weights[i] * rows[i * stride + j];
}

// The loop of ScoreBlock, which the compiler vectorises for the instruction set of its caller.
__attribute__((always_inline)) inline uint64_t block_scores(const uint8_t* block, int64_t width,
                                                            const int8_t* query, int32_t least,
                                                            int32_t* __restrict scores) {
    for (int i = 0; i < kBlockCodes; i++) scores[i] = 0;
    for (int64_t j = 0; j < width; j += 4, block += 4 * kBlockCodes)
        for (int i = 0; i < kBlockCodes; i++)
            for (int b = 0; b < 4; b++) scores[i] += int32_t(block[4 * i + b]) * query[j + b];
    uint64_t above = 0;
    for (int i = 0; i < kBlockCodes; i++) above |= uint64_t(scores[i] > least) << i;
    return above;
}

// `dim` numbers of float16, at any byte address, as floats.
void widen_row(const uint8_t* row, int64_t dim, float* floats);

struct Level {
    const char* name;  // how a user chooses it
    const char* title; // how it is shown
    ScoreCodes codes;
    ScoreBlock block;
    ScoreRow half;   // rows of float16
    ScoreRow single; // rows of float32
    SubtractRows subtract;
    ScoreFour four;  // null where one query after the other is as fast
};

// The levels that this processor can run, the best first; the last one is "scalar".
const std::vector<Level>& levels();

// What the levels of one processor family add to the scalar one; the best first.
std::vector<Level> vector_levels();

} // namespace kernel
