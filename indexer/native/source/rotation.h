// The rotation of one query.
#pragma once

#include "scores.h"

#include <cstdint>

namespace kernel {

// A rotation R of `dim` dimensions. Equal to RotationArrays in rotating.py, field by field.
//
// With `span` 0, `rows` is the transpose of R (dim, dim). Otherwise R, its first `span` columns
// multiplied by `signs`, is I - U S^-1 U^T: `rows` is the transpose of U (span, dim) and `inverse`
// that of S^-1 (span, span), which take less memory. See completed in storage/rotation.py.
struct Rotation {
    int64_t dim, span;
    const float* rows;
    const float* inverse;
    const float* signs;
};

// Scales a query to length one and rotates it into `out` (dim). All levels agree bit for bit.
// Returns the squared length, which is no positive number for a query without a direction; `out`
// then means nothing. Throws std::bad_alloc.
double rotate(const float* query, const Rotation& rotation, const Level& level, float* out);

} // namespace kernel
