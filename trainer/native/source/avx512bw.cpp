#if defined(__x86_64__)

#include <immintrin.h>

#define LANES 16
#include "level.h"

#if defined(__clang__)
#pragma clang attribute push( \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512")
#endif

namespace encoder {
namespace avx512bw {

static inline __attribute__((always_inline)) __m512i dot(__m512i sums, __m512i weights,
                                                         __m512i narrow) {
  const __m512i pairs = _mm512_maddubs_epi16(weights, narrow);
  return _mm512_add_epi32(sums, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
}

#include "avx512.h"

#include "encode.h"

}  // namespace avx512bw

void encode_avx512bw(const Network& network, const Texts& texts) {
  avx512bw::run(network, texts);
}

}  // namespace encoder

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
