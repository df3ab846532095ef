// Exact search: the best rows of many queries, from one pass over the full-width rows.
#pragma once

#include "scores.h"

#include <cstdint>

namespace kernel {

// A pass over the rows first … last - 1 of a file, or over those of a list.
struct Pass {
    const uint8_t* full;    // the rows of the file, at any byte address
    int64_t dim;
    int64_t half;           // 1: rows of float16, 0: float32
    const int64_t* numbers; // rows to score, from first to last - 1; null: all
    const uint8_t* mask;    // whether a row may be found, one byte each; null for all
    int64_t first, last;
    const float* queries;   // (count, dim)
    int64_t count;
    int64_t k;              // rows per query
};

// Adds the rows of a pass to the best so far: rows and scores (count, k) by (-score, row), padded
// with -1 and -inf. Throws std::bad_alloc, and then leaves them as they were.
void add_best(const Pass& pass, const Level& level, int threads, int64_t* rows, float* scores);

// The best k of the candidates (count, size) of each query; -1 is padding. `first`, `last`, `numbers`
// and `mask` of the pass are not read. Throws std::bad_alloc.
void rerank(const Pass& pass, const Level& level, const int64_t* candidates, int64_t size,
            int threads, int64_t* rows, float* scores);

} // namespace kernel
