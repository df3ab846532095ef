// A network of BERT's kind in 8 bits, as trainer/native/weights.py lays it out.
#pragma once

#include <cstdint>

namespace encoder {

// x · weight + bias. A channel with a larger range than the others has several digits, whose sum is
// its value: the first stands in its place, the others behind the channels of the input.
struct Linear {
  int32_t in;               // channels of the input, a multiple of 16
  int32_t digits;           // of the input, a multiple of 4
  int32_t out;              // channels of the output, a multiple of 16
  const uint8_t* weights;   // [out / 64][digits / 4][64][4], the last panel narrower; weight + 128
  const float* scales;      // [out] of the weights
  const float* bias;        // [out]
  const float* sums;        // [out] of the weights over the input, scaled
  const float* shares;      // [in] 1 / digits of the channel
  const int32_t* channels;  // [digits - in] the channel of a further digit, -1 for none
};

struct Norm {
  const float* weight;
  const float* bias;
};

struct Layer {
  Linear attention;  // queries, keys and values side by side
  Linear attended;
  Linear inner;
  Linear outer;
  Norm first;
  Norm second;
};

struct Network {
  int32_t width, heads, layers, inner;
  int32_t bits;  // of a digit, without its sign: 7, or NARROW
  float epsilon;
  const int8_t* words;        // [tokens][width]
  const float* word_scales;   // [tokens]
  const float* positions;     // [length][width]
  Norm norm;
  const Layer* layer;
};

// Texts one behind another: tokens[sum of lengths]. Of the last layer, [texts][width]: the vector of
// the first token, the means and, unless it is null, the maxima of all tokens.
struct Texts {
  const int32_t* tokens;
  const int32_t* lengths;
  int32_t count;
  float* cls;
  float* means;
  float* maxima;
};

// Whether the inputs of attention have finer digits. Their errors are the largest of all, and what
// few tokens err by shifts all scores of a question. All texts of a call are fine, or none is.
inline bool is_fine(int32_t length) { return length <= 32; }

// The sum of two products of a weight and such a digit fits into 16 bits, where levels without VNNI
// add them.
constexpr int NARROW = 6;

// What a level of instructions provides.
using Encode = void (*)(const Network&, const Texts&);
void encode_scalar(const Network&, const Texts&);
// gcc alone can ask whether the processor has tiles.
#if defined(__x86_64__) && defined(__linux__) && !defined(__clang__) && __GNUC__ >= 11
#define ENCODER_HAS_AMX
void encode_amx(const Network&, const Texts&);
bool may_use_tiles();
#endif
#if defined(__x86_64__)
void encode_avx2(const Network&, const Texts&);
void encode_avxvnni(const Network&, const Texts&);
void encode_avx512bw(const Network&, const Texts&);
void encode_avx512vnni(const Network&, const Texts&);
#endif
#if defined(__aarch64__)
void encode_neon(const Network&, const Texts&);
#endif

}  // namespace encoder
