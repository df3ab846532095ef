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

constexpr int LANES = 16;
using Floats = float __attribute__((vector_size(64)));
using Ints = int32_t __attribute__((vector_size(64)));
using Bytes = int8_t __attribute__((vector_size(16)));

#define INLINE_CALL inline __attribute__((always_inline))

}  // namespace encoder
