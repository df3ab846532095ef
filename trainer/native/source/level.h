// What every level includes before its target pragma.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>
#include <type_traits>
#include <vector>

#include "network.h"

namespace encoder {

// Outputs that are multiplied together; sums of floats are taken in so many parts at every level.
constexpr int COLUMNS = 16;

// Bytes of a line of the cache. Loads from two lines take twice the time.
constexpr int LINE = 64;
template <class T>
struct Aligned {
  using value_type = T;
  T* allocate(size_t count) { return (T*)::operator new(count * sizeof(T), std::align_val_t(LINE)); }
  void deallocate(T* values, size_t) { ::operator delete(values, std::align_val_t(LINE)); }
  bool operator==(const Aligned&) const { return true; }
  bool operator!=(const Aligned&) const { return false; }
};
template <class T>
using Buffer = std::vector<T, Aligned<T>>;

// LANES: of a register of the level.
using Floats = float __attribute__((vector_size(4 * LANES)));
using Ints = int32_t __attribute__((vector_size(4 * LANES)));
using Bytes = int8_t __attribute__((vector_size(LANES)));

#define INLINE_CALL inline __attribute__((always_inline))

}  // namespace encoder
