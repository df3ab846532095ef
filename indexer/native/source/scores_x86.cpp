// AVX-512 VNNI and AVX2. Each function names its instruction set, so the library runs anywhere.
#if defined(__x86_64__)

#include "scores.h"

#include <cpuid.h>
#include <cstring>
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2,f16c")))
#define AVX512 __attribute__((target("avx2,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")))

namespace kernel {
namespace {

// --- AVX-512 VNNI --------------------------------------------------------------------------------

AVX512 inline __m256i halved(__m512i sums) {
    return _mm256_add_epi32(_mm512_castsi512_si256(sums), _mm512_extracti64x4_epi64(sums, 1));
}

// The totals of four vectors of sixteen sums, in order.
AVX512 inline __m128i totals(__m512i a, __m512i b, __m512i c, __m512i d) {
    __m256i ab = _mm256_hadd_epi32(halved(a), halved(b));
    __m256i cd = _mm256_hadd_epi32(halved(c), halved(d));
    __m256i all = _mm256_hadd_epi32(ab, cd);
    return _mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
}

// `blocks` > 0: the number of 64-byte blocks, known to the compiler, and no tail.
template <int blocks>
AVX512 void score_512(const uint8_t* codes, int64_t width, const int8_t* query,
                      const int32_t* rows, int count, int32_t* scores) {
    __m512i held[blocks > 0 ? blocks : 1];
    for (int b = 0; b < blocks; b++) held[b] = _mm512_loadu_si512(query + 64 * b);
    const int64_t whole = blocks > 0 ? blocks : width / 64;
    const __mmask64 tail = blocks > 0 ? 0 : (uint64_t(1) << (width % 64)) - 1;
    for (int i = 0; i < count; i += 4) {
        const uint8_t* at[4];
        __m512i sums[4];
        for (int r = 0; r < 4; r++) {
            at[r] = codes + rows[i + r < count ? i + r : i] * width;
            sums[r] = _mm512_setzero_si512();
        }
        for (int64_t b = 0; b < whole; b++) {
            const __m512i part = blocks > 0 ? held[b] : _mm512_loadu_si512(query + 64 * b);
            for (int r = 0; r < 4; r++)
                sums[r] = _mm512_dpbusd_epi32(sums[r], _mm512_loadu_si512(at[r] + 64 * b), part);
        }
        if (tail)
            for (int r = 0; r < 4; r++)
                sums[r] = _mm512_dpbusd_epi32(sums[r],
                                              _mm512_maskz_loadu_epi8(tail, at[r] + 64 * whole),
                                              _mm512_loadu_si512(query + 64 * whole));
        const __mmask8 those = uint8_t(count - i >= 4 ? 15 : (1 << (count - i)) - 1);
        _mm_mask_storeu_epi32(scores + i, those, totals(sums[0], sums[1], sums[2], sums[3]));
    }
}

AVX512 void codes_512(const uint8_t* codes, int64_t width, const int8_t* query,
                      const int32_t* rows, int count, int32_t* scores) {
    ScoreCodes fitting = score_512<0>;
    if (width == 64) fitting = score_512<1>;
    if (width == 128) fitting = score_512<2>;
    if (width == 192) fitting = score_512<3>;
    if (width == 256) fitting = score_512<4>;
    fitting(codes, width, query, rows, count, scores);
}

AVX512 uint64_t block_512(const uint8_t* block, int64_t width, const int8_t* query, int32_t least,
                          int32_t* scores) {
    __m512i sums[4];
    for (__m512i& sum : sums) sum = _mm512_setzero_si512();
    for (int64_t j = 0; j < width; j += 4, block += 4 * kBlockCodes) {
        int32_t four;
        std::memcpy(&four, query + j, 4);
        const __m512i each = _mm512_set1_epi32(four);
        for (int s = 0; s < 4; s++)
            sums[s] = _mm512_dpbusd_epi32(sums[s], _mm512_loadu_si512(block + 64 * s), each);
    }
    uint64_t above = 0;
    const __m512i limit = _mm512_set1_epi32(least);
    for (int s = 0; s < 4; s++) {
        _mm512_storeu_si512(scores + 16 * s, sums[s]);
        above |= uint64_t(_mm512_cmpgt_epi32_mask(sums[s], limit)) << (16 * s);
    }
    return above;
}

// A pool of `blocks` blocks is held in registers: a load of what was just stored would wait. What
// falls out takes the place of its key.
template <int blocks> AVX512 void insert_held(int64_t* pool, int64_t* keys, int count) {
    __m512i held[blocks + 1];
    for (int b = 0; b < blocks; b++) held[b] = _mm512_loadu_si512(pool + kPoolBlock * b);
    held[blocks] = _mm512_set1_epi64(INT64_MAX);
    for (int k = 0; k < count; k++) {
        const __m512i each = _mm512_set1_epi64(keys[k]);
        keys[k] = _mm_cvtsi128_si64(_mm512_castsi512_si128(_mm512_min_epi64(held[0], each)));
        for (int b = 0; b < blocks; b++)
            held[b] = _mm512_min_epi64(_mm512_alignr_epi64(held[b + 1], held[b], 1),
                                       _mm512_max_epi64(held[b], each));
    }
    for (int b = 0; b < blocks; b++) _mm512_storeu_si512(pool + kPoolBlock * b, held[b]);
}

AVX512 void insert_512(int64_t* pool, int room, int64_t* keys, int count) {
    constexpr decltype(&insert_held<1>) fitting[] = {
        insert_held<1>, insert_held<2>, insert_held<3>, insert_held<4>,
        insert_held<5>, insert_held<6>, insert_held<7>, insert_held<8>};
    for (int blocks; room > 0; room -= blocks * kPoolBlock) { // the best part first
        blocks = room < 8 * kPoolBlock ? room / kPoolBlock : 8;
        fitting[blocks - 1](pool + room - blocks * kPoolBlock, keys, count);
    }
}

AVX2 inline float folded(__m256 sums) {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

template <bool half>
AVX512 inline __m512 load_512(const uint8_t* row) {
    if (!half) return _mm512_loadu_ps(row);
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(row)));
}

template <bool half>
AVX512 float row_512(const uint8_t* row, const float* query, int64_t dim) {
    constexpr int bytes = half ? 2 : 4;
    __m512 low = _mm512_setzero_ps(), high = _mm512_setzero_ps();
    int64_t j = 0;
    alignas(64) uint8_t rest[kLanes * bytes] = {};
    auto end = dim - dim % kLanes;
    for (; j < end; j += kLanes, row += kLanes * bytes) {
        low = _mm512_add_ps(low, _mm512_mul_ps(load_512<half>(row), _mm512_loadu_ps(query + j)));
        high = _mm512_add_ps(high, _mm512_mul_ps(load_512<half>(row + 16 * bytes),
                                                 _mm512_loadu_ps(query + j + 16)));
    }
    if (j < dim) {
        std::memcpy(rest, row, (dim - j) * bytes);
        low = _mm512_add_ps(low, _mm512_mul_ps(load_512<half>(rest), _mm512_loadu_ps(query + j)));
        high = _mm512_add_ps(high, _mm512_mul_ps(load_512<half>(rest + 16 * bytes),
                                                 _mm512_loadu_ps(query + j + 16)));
    }
    __m512 sums = _mm512_add_ps(low, high);
    return folded(_mm256_add_ps(_mm512_castps512_ps256(sums), _mm512_extractf32x8_ps(sums, 1)));
}

AVX512 void four_512(const float* row, const float* const* queries, int64_t dim, float* scores) {
    __m512 low[4], high[4];
    for (int q = 0; q < 4; q++) low[q] = high[q] = _mm512_setzero_ps();
    for (int64_t j = 0; j < dim; j += kLanes) {
        const __m512 first = _mm512_loadu_ps(row + j), second = _mm512_loadu_ps(row + j + 16);
        for (int q = 0; q < 4; q++) {
            low[q] = _mm512_add_ps(low[q], _mm512_mul_ps(first, _mm512_loadu_ps(queries[q] + j)));
            high[q] = _mm512_add_ps(high[q],
                                    _mm512_mul_ps(second, _mm512_loadu_ps(queries[q] + j + 16)));
        }
    }
    for (int q = 0; q < 4; q++) {
        const __m512 sums = _mm512_add_ps(low[q], high[q]);
        scores[q] =
            folded(_mm256_add_ps(_mm512_castps512_ps256(sums), _mm512_extractf32x8_ps(sums, 1)));
    }
}

// --- AVX2 ----------------------------------------------------------------------------------------

AVX2 inline __m256i products(__m128i code, __m128i query) {
    // Widened first: the instruction that multiplies bytes saturates sums of two.
    return _mm256_madd_epi16(_mm256_cvtepu8_epi16(code), _mm256_cvtepi8_epi16(query));
}

AVX2 uint64_t block_256(const uint8_t* block, int64_t width, const int8_t* query, int32_t least,
                        int32_t* scores) {
    const __m256i low = _mm256_set1_epi16(0xff), limit = _mm256_set1_epi32(least);
    uint64_t above = 0;
    for (int first = 0; first < kBlockCodes; first += 32) {
        const uint8_t* from = block + 4 * first;
        __m256i sums[4];
        for (__m256i& sum : sums) sum = _mm256_setzero_si256();
        for (int64_t j = 0; j < width; j += 4, from += 4 * kBlockCodes) {
            int32_t four;
            std::memcpy(&four, query + j, 4);
            const __m256i each = _mm256_set1_epi32(four);
            const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(each, 8), 8);
            const __m256i odd = _mm256_srai_epi16(each, 8);
            for (int s = 0; s < 4; s++) {
                const __m256i codes =
                    _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32 * s));
                sums[s] = _mm256_add_epi32(
                    sums[s], _mm256_add_epi32(
                                 _mm256_madd_epi16(_mm256_and_si256(codes, low), even),
                                 _mm256_madd_epi16(_mm256_srli_epi16(codes, 8), odd)));
            }
        }
        for (int s = 0; s < 4; s++) {
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(scores + first + 8 * s), sums[s]);
            const __m256i more = _mm256_cmpgt_epi32(sums[s], limit);
            above |= uint64_t(uint8_t(_mm256_movemask_ps(_mm256_castsi256_ps(more))))
                     << (first + 8 * s);
        }
    }
    return above;
}

AVX2 inline __m128i load_128(const void* at) {
    return _mm_loadu_si128(static_cast<const __m128i*>(at));
}

AVX2 void codes_256(const uint8_t* codes, int64_t width, const int8_t* query, const int32_t* rows,
                    int count, int32_t* scores) {
    const int64_t end = width - width % 16;
    for (int i = 0; i < count; i++) {
        const uint8_t* code = codes + rows[i] * width;
        __m256i sums = _mm256_setzero_si256();
        for (int64_t j = 0; j < end; j += 16)
            sums = _mm256_add_epi32(sums, products(load_128(code + j), load_128(query + j)));
        if (end < width) {
            uint8_t rest[16] = {};
            std::memcpy(rest, code + end, width - end);
            sums = _mm256_add_epi32(sums, products(load_128(rest), load_128(query + end)));
        }
        __m128i four =
            _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
        __m128i two = _mm_hadd_epi32(four, four);
        scores[i] = _mm_cvtsi128_si32(_mm_hadd_epi32(two, two));
    }
}

template <bool half>
AVX2 inline __m256 load_256(const uint8_t* row) {
    if (!half) return _mm256_loadu_ps(reinterpret_cast<const float*>(row));
    return _mm256_cvtph_ps(load_128(row));
}

template <bool half>
AVX2 float row_256(const uint8_t* row, const float* query, int64_t dim) {
    constexpr int bytes = half ? 2 : 4;
    __m256 lanes[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(),
                       _mm256_setzero_ps()};
    uint8_t rest[kLanes * bytes] = {};
    for (int64_t j = 0; j < dim; j += kLanes, row += kLanes * bytes) {
        const uint8_t* from = row;
        if (j + kLanes > dim) {
            std::memcpy(rest, row, (dim - j) * bytes);
            from = rest;
        }
        for (int l = 0; l < 4; l++)
            lanes[l] = _mm256_add_ps(lanes[l], _mm256_mul_ps(load_256<half>(from + 8 * l * bytes),
                                                             _mm256_loadu_ps(query + j + 8 * l)));
    }
    return folded(
        _mm256_add_ps(_mm256_add_ps(lanes[0], lanes[2]), _mm256_add_ps(lanes[1], lanes[3])));
}

bool converts_halves() {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

} // namespace

std::vector<Level> vector_levels() {
    std::vector<Level> found;
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !converts_halves()) return found;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vnni"))
        found.push_back({"avx512vnni", "AVX-512 VNNI", codes_512, block_512, insert_512,
                         row_512<true>, row_512<false>, four_512});
    found.push_back({"avx2", "AVX2", codes_256, block_256, insert_keys, row_256<true>,
                     row_256<false>, nullptr});
    return found;
}

} // namespace kernel

#endif
