// A query as a search needs it: of length one, and its prefix.
#pragma once

#include "graph.h"
#include "scores.h"

#include <cstdint>
#include <vector>

namespace kernel {

// Scales a vector to length one: sums and quotients in double, rounded to float once. A vector whose
// squared length is within 2^-20 of 1, as that of a stored row, stays as it is to the bit. False if
// it is zero or not finite; `out` then means nothing.
bool scale_to_one(const float* vector, int64_t dim, float* out);

// A prefix as 8 bits: out_j = value_j * scale_j, rounded with one scale for all.
void quantize(const float* values, const float* scales, int64_t width, int8_t* out);

// The rotation of queries to prefixes, by a matrix in 8 bits with one scale a row: a quarter of the
// memory of floats, so that it stays in a cache between walks. Sums are integers: all levels agree.
class PrefixRotation {
  public:
    // Without a matrix a prefix is the first dimensions. Throws std::bad_alloc.
    explicit PrefixRotation(const Graph& graph);

    // The prefix (width) of a query (dim) of length one. It is not scaled to length one again: the
    // 8 bits of `quantize` do not depend on it. Throws std::bad_alloc.
    void rotate(const float* query, const Level& level, float* prefix) const;

  private:
    const int64_t width_, dim_;
    std::vector<Line> blocks_;    // the matrix, value + 128, see pack_codes; none without one
    std::vector<float> scales_;   // (width) value of one step of a row's codes
};

} // namespace kernel
