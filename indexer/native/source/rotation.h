// The rotation of one query.
#pragma once

#include "scores.h"

#include <cstdint>

namespace kernel {

// Scales a query of `dim` floats to length one and rotates it: out[i] is the inner product with row
// i of `rotation` (dim, dim). All levels agree bit for bit. Returns the squared length, which is no
// positive number for a query without a direction; `out` then means nothing. Throws std::bad_alloc.
double rotate(const float* query, const float* rotation, int64_t dim, const Level& level,
              float* out);

} // namespace kernel
