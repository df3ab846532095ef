// What every level includes before its target pragma.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "network.h"

namespace encoder {

// Outputs that are multiplied together; sums of floats are taken in so many parts at every level.
constexpr int COLUMNS = 16;

// LANES: of a register of the level.
using Floats = float __attribute__((vector_size(4 * LANES)));
using Ints = int32_t __attribute__((vector_size(4 * LANES)));
using Bytes = int8_t __attribute__((vector_size(LANES)));

#define INLINE_CALL inline __attribute__((always_inline))

}  // namespace encoder
