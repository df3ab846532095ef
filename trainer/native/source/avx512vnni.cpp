#if defined(__x86_64__)

#include <immintrin.h>

#define LANES 16
#include "level.h"

#define dot _mm512_dpbusd_epi32

#if defined(__clang__)
#pragma clang attribute push( \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,prefer-vector-width=512")
#endif

namespace encoder {
namespace avx512vnni {

#include "avx512.h"

#include "encode.h"

}  // namespace avx512vnni

void encode_avx512vnni(const Network& network, const Texts& texts) {
  avx512vnni::run(network, texts);
}

}  // namespace encoder

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
