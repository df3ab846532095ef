// The inner products of a search, once for each instruction set.
//
// All levels agree bit for bit: the scores of codes are integers, and full-width scores are summed
// in the same 32 lanes, without fused multiply-add, and folded in the same order. So a score
// depends neither on the processor nor on the place of its row.
#pragma once

#include <cstdint>
#include <vector>

namespace kernel {

struct alignas(64) Line { // of a cache: a vector of these is aligned
    uint8_t bytes[64];
};

inline int64_t padded(int64_t size, int64_t to) { return (size + to - 1) / to * to; }

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

constexpr int kPoolBlock = 8; // the room of a pool is a multiple of this

// Inserts keys into a pool of this room, which rises and has INT64_MAX behind it: for each key the
// first falls out, the key itself where it is lower than all. The keys are changed.
using InsertKeys = void (*)(int64_t* pool, int room, int64_t* keys, int count);

// InsertKeys of the levels that cannot hold a pool in registers. The search has no branch on the
// place of a key: it cannot be predicted.
void insert_keys(int64_t* pool, int room, int64_t* keys, int count);

// `dim` numbers of float16, at any byte address, as floats.
void widen_row(const uint8_t* row, int64_t dim, float* floats);

struct Level {
    const char* name;  // how a user chooses it
    const char* title; // how it is shown
    ScoreCodes codes;
    ScoreBlock block;
    InsertKeys insert;
    ScoreRow half;   // rows of float16
    ScoreRow single; // rows of float32
    ScoreFour four;  // null where one query after the other is as fast
};

// The levels that this processor can run, the best first; the last one is "scalar".
const std::vector<Level>& levels();

// What the levels of one processor family add to the scalar one; the best first.
std::vector<Level> vector_levels();

} // namespace kernel
