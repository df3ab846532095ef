// The products of AVX-512 VNNI in registers of 256 bits: desktop and mobile processors have them
// without AVX-512. By gcc alone, because clang cannot ask whether the processor has them.
// VNNI_BY_AVX512 lets the same code be tried where there is AVX-512 alone.
#if defined(__x86_64__) && !defined(__clang__) && __GNUC__ >= 11

#include <immintrin.h>

#define LANES 8
#include "level.h"

#if defined(VNNI_BY_AVX512)
#define dot _mm256_dpbusd_epi32
#else
#define dot _mm256_dpbusd_avx_epi32
#endif

#pragma GCC push_options
#if defined(VNNI_BY_AVX512)
#pragma GCC target("avx2,fma,avx512vl,avx512vnni")
#else
#pragma GCC target("avx2,fma,avxvnni")
#endif

namespace encoder {
namespace avxvnni {

#define ROWS 6
#include "avx2.h"

#include "encode.h"

}  // namespace avxvnni

void encode_avxvnni(const Network& network, const Texts& texts) { avxvnni::run(network, texts); }

}  // namespace encoder

#pragma GCC pop_options
#endif
