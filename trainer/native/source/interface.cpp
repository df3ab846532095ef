// The functions that trainer/native/library.py loads.
#include <vector>

#if defined(__linux__)
#include <sys/auxv.h>
#endif

#include "network.h"
#include "threads.h"

using encoder::Encode;
using encoder::is_fine;
using encoder::Network;
using encoder::Texts;

namespace {

struct Level {
  const char* name;
  Encode encode;
  int32_t bits = 7;  // of a digit, at most
};

#if defined(__aarch64__)
// Whether the processor has the products of bytes of Armv8.2, as all of Apple's do.
bool multiplies_bytes() {
#if defined(__linux__)
  return getauxval(AT_HWCAP) & (1UL << 20);  // HWCAP_ASIMDDP
#elif defined(__APPLE__)
  return true;
#else
  return false;
#endif
}
#endif

// Those that this processor can run, the best first.
const std::vector<Level>& levels() {
  static const std::vector<Level> found = [] {
    std::vector<Level> list;
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx512 = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                        __builtin_cpu_supports("avx512dq");
#if defined(ENCODER_HAS_AMX)
    if (avx512 && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("amx-tile") &&
        __builtin_cpu_supports("amx-int8") && encoder::may_use_tiles())
      list.push_back({"amx", encoder::encode_amx});
#endif
    if (avx512 && __builtin_cpu_supports("avx512vnni"))
      list.push_back({"avx512vnni", encoder::encode_avx512vnni});
#if defined(VNNI_BY_AVX512)
    if (avx512 && __builtin_cpu_supports("avx512vnni"))
      list.push_back({"avxvnni", encoder::encode_avxvnni});
#elif !defined(__clang__) && __GNUC__ >= 11
    if (__builtin_cpu_supports("avxvnni") && __builtin_cpu_supports("avx2") &&
        __builtin_cpu_supports("fma"))
      list.push_back({"avxvnni", encoder::encode_avxvnni});
#endif
    if (avx512) list.push_back({"avx512bw", encoder::encode_avx512bw, encoder::NARROW});
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
      list.push_back({"avx2", encoder::encode_avx2, encoder::NARROW});
#endif
#if defined(__aarch64__)
    if (multiplies_bytes()) list.push_back({"neon", encoder::encode_neon});
#endif
    list.push_back({"scalar", encoder::encode_scalar});
    return list;
  }();
  return found;
}

// Tokens of the texts that one thread computes at a time: their vectors stay in its second cache.
constexpr int CHUNK = 256;

}  // namespace

extern "C" {

const char* encoder_level(int number) {
  return number < (int)levels().size() ? levels()[number].name : nullptr;
}

// Returns 0, 1 for want of memory, or 2 for digits that the level does not compute with. threads: at
// most.
int encoder_run(int level, const Network* network, const Texts* texts, int threads) {
  const Level& chosen = levels()[level];
  if (network->bits > chosen.bits) return 2;
  std::vector<Texts> chunks;
  int64_t tokens = 0, in_chunk = 0;
  int32_t length_before = 0;
  for (int i = 0; i < texts->count; i++) {
    const int length = texts->lengths[i];
    if (i == 0 || in_chunk + length > CHUNK || is_fine(length) != is_fine(length_before)) {
      const int64_t row = (int64_t)i * network->width;
      chunks.push_back({texts->tokens + tokens, texts->lengths + i, 0, texts->cls + row,
                        texts->means + row, texts->maxima ? texts->maxima + row : nullptr});
      in_chunk = 0;
    }
    chunks.back().count++;
    in_chunk += length;
    length_before = length;
    tokens += length;
  }
  return in_threads(threads, (int)chunks.size(),
                    [&](int i) { chosen.encode(*network, chunks[i]); });
}
}
