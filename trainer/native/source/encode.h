// The computation, in vectors of LANES floats. Each level includes this once, in a namespace of its own
// behind its target pragma, with `multiply_add` and `tile` of its own. All else is the same code,
// without contraction, and products of integers are exact: all levels give the same bits.
//
// No include guard: it is included by every level.

// The tiles of attention's products, which are small.
#if !defined(ATTENTION_TILES)
#define ATTENTION_TILES Tiles
#endif

#define INLINE static inline __attribute__((always_inline))

INLINE Floats load(const float* p) {
  Floats v;
  memcpy(&v, p, sizeof v);
  return v;
}
INLINE void store(float* p, Floats v) { memcpy(p, &v, sizeof v); }
INLINE Ints load(const int32_t* p) {
  Ints v;
  memcpy(&v, p, sizeof v);
  return v;
}
INLINE void store(int32_t* p, Ints v) { memcpy(p, &v, sizeof v); }
INLINE Floats all(float x) { return Floats{} + x; }
INLINE Floats to_floats(Ints v) { return __builtin_convertvector(v, Floats); }
INLINE Floats larger(Floats a, Floats b) { return a > b ? a : b; }
INLINE Floats smaller(Floats a, Floats b) { return a < b ? a : b; }
INLINE Floats absolute(Floats a) { return (Floats)((Ints)a & 0x7fffffff); }
// Behind this sum, the lowest bits are x rounded to an integer; |x| < 2^22.
constexpr float ROUNDS = 12582912.f;
INLINE Ints nearest(Floats x) { return (Ints)(x + ROUNDS) - (Ints)all(ROUNDS); }
INLINE Ints clipped(Ints v, int32_t most) {
  v = v > most ? Ints{} + most : v;
  return v < -most ? Ints{} - most : v;
}
INLINE void store_bytes(void* p, Ints v) {
  Bytes b = __builtin_convertvector(v, Bytes);
  memcpy(p, &b, sizeof b);
}
// The lanes, N further on; those behind the last are the first.
template <int N, class Vector>
INLINE Vector turned(Vector v) {
#if !defined(__clang__)
  Ints from{};
  for (int i = 0; i < LANES; i++) from[i] = (i + N) % LANES;
  return __builtin_shuffle(v, from);
#elif LANES == 16
  return __builtin_shufflevector(v, v, N, N + 1, N + 2, N + 3, N + 4, N + 5, N + 6, N + 7, N + 8,
                                 N + 9, N + 10, N + 11, N + 12, N + 13, N + 14, N + 15);
#else
  return __builtin_shufflevector(v, v, N, N + 1, N + 2, N + 3, N + 4, N + 5, N + 6, N + 7);
#endif
}
template <class Vector, class Both>
INLINE auto folded(Vector v, Both both) {
  if constexpr (LANES == 16) v = both(v, turned<LANES / 2>(v));
  v = both(v, turned<4>(v));
  v = both(v, turned<2>(v));
  return both(v, turned<1>(v))[0];
}
INLINE float sum(Floats v) {
  return folded(v, [](Floats a, Floats b) __attribute__((always_inline)) { return a + b; });
}
INLINE float largest(Floats v) {
  return folded(v, [](Floats a, Floats b) __attribute__((always_inline)) { return larger(a, b); });
}
INLINE int32_t sum(Ints v) {
  return folded(v, [](Ints a, Ints b) __attribute__((always_inline)) { return a + b; });
}
INLINE float inverse(float x) { return x > 0 ? 1.f / x : 0.f; }

// 2^x; the polynomial's relative error is at most 2.7e-6.
INLINE Floats power_of_two(Floats x) {
  x = larger(x, all(-126.f));
  Floats rounded = x + ROUNDS;
  Floats f = x - (rounded - ROUNDS);
  Floats p = all(0.009569929286f);
  p = multiply_add(p, f, all(0.05591740134f));
  p = multiply_add(p, f, all(0.2402474468f));
  p = multiply_add(p, f, all(0.6931218743f));
  p = multiply_add(p, f, all(0.9999992631f));
  return (Floats)((Ints)p + (((Ints)rounded - (Ints)all(ROUNDS)) << 23));
}

// x · Φ(x), where Φ(x) is 0.5 + x · a polynomial of x² for |x| ≤ 4; the error is at most 2e-4,
// and 5e-4 to the form by tanh: networks with that form are run by this one as well.
INLINE Floats gelu(Floats x) {
  Floats c = larger(smaller(x, all(4.f)), all(-4.f));
  Floats u = c * c;
  Floats p = all(2.279085300e-8f);
  p = multiply_add(p, u, all(-1.599095439e-6f));
  p = multiply_add(p, u, all(4.796558204e-5f));
  p = multiply_add(p, u, all(-8.141161090e-4f));
  p = multiply_add(p, u, all(8.772895487e-3f));
  p = multiply_add(p, u, all(-6.457428493e-2f));
  p = multiply_add(p, u, all(3.978842610e-1f));
  return x * multiply_add(c, p, all(0.5f));
}
constexpr float LEAST_GELU = -0.17f;

struct Keep {
  INLINE_CALL Floats operator()(const float*, Floats v) const { return v; }
};
struct Gelu {
  INLINE_CALL Floats operator()(const float*, Floats v) const { return gelu(v); }
};
struct Add {
  INLINE_CALL Floats operator()(const float* p, Floats v) const { return v + load(p); }
};

// The products of rows of signed digits with panels of weights + MIDDLE: out[rows][16 · vectors].
// steps: groups of 4 digits. stride: bytes of a step of the panel.
template <template <int> class Tiles>
static void product(const int8_t* a, int64_t a_stride, int rows, const uint8_t* panel,
                    int64_t stride, int vectors, int steps, int32_t* out, int64_t out_stride) {
  const auto go = [&](auto v) {
    constexpr int V = decltype(v)::value;
    Tiles<V>::run(a, a_stride, rows, panel, stride, steps, out, out_stride);
  };
  switch (vectors) {
    case 4: return go(std::integral_constant<int, 4>());
    case 3: return go(std::integral_constant<int, 3>());
    case 2: return go(std::integral_constant<int, 2>());
    default: return go(std::integral_constant<int, 1>());
  }
}

// Rows of digits. A value is shift + scale · the sum of its digits. Fine values have a second row of
// digits, 128 times smaller, behind the first.
struct Rows {
  int32_t most;  // the largest digit
  bool fine = false;
  int64_t stride = 0;  // of the digits
  Buffer<int8_t> digits;
  Buffer<float> scales, shifts;
  Buffer<int32_t> offsets;  // MIDDLE · the sum of all digits of a row of digits
};
constexpr int FINE_BITS = 7;

// positive: whether the values are those of GELU, of which a half of the range would be unused.
template <bool positive>
static void quantize(const Linear& l, const float* x, int rows, Rows& to, bool fine = false) {
  to.fine = fine;
  const int each = fine ? 2 : 1, bits = fine ? FINE_BITS : 0, half = 1 << bits >> 1;
  to.stride = (l.digits + LINE - 1) / LINE * LINE;
  to.digits.resize(rows * each * to.stride);
  to.scales.resize(rows);
  to.shifts.resize(rows);
  to.offsets.resize(rows * each);
  for (int r = 0; r < rows; r++, x += l.in) {
    int8_t* digits = &to.digits[r * each * to.stride];
    Floats most{};
    float shift = 0;
    if (positive) {
      for (int i = 0; i < l.in; i += LANES) most = larger(most, load(x + i) * load(l.shares + i));
      shift = (largest(most) + LEAST_GELU) * 0.5f;
      most = Floats{};
    }
    for (int i = 0; i < l.in; i += LANES)
      most = larger(most, absolute(load(x + i) - shift) * load(l.shares + i));
    const float scale = largest(most) * (1.f / (to.most << bits)), factor = inverse(scale);
    Ints total{}, fine_total{};
    for (int i = 0; i < l.in; i += LANES) {
      const Ints whole = nearest((load(x + i) - shift) * factor);
      const Ints high = (whole + half) >> bits, first = clipped(high, to.most);
      store_bytes(digits + i, first);
      total += first;
      if (fine) {
        const Ints low = whole - (high << bits);
        store_bytes(digits + to.stride + i, low);
        fine_total += low;
      }
    }
    int32_t all_digits = sum(total), rest = 0, channel = -1;
    for (int j = l.in; j < l.digits; j++) {
      const int32_t of = l.channels[j - l.in];
      if (of != channel) {
        channel = of;
        if (of >= 0) {
          float value = (x[of] - shift) * factor + ROUNDS, zero = ROUNDS;
          int32_t whole, zero_bits;
          memcpy(&whole, &value, 4);
          memcpy(&zero_bits, &zero, 4);
          rest = ((whole - zero_bits + half) >> bits) - digits[of];
        } else {
          rest = 0;
        }
      }
      const int32_t digit = std::max(-to.most, std::min(to.most, rest));
      digits[j] = (int8_t)digit;
      rest -= digit;
      all_digits += digit;
    }
    to.scales[r] = scale;
    to.shifts[r] = shift;
    to.offsets[r * each] = MIDDLE * all_digits;
    if (fine) {
      memset(digits + to.stride + l.in, 0, l.digits - l.in);
      to.offsets[2 * r + 1] = MIDDLE * sum(fine_total);
    }
  }
}

// Rows of digits multiplied by a panel while it is in the first cache. The last block takes up to FEW
// more.
constexpr int BLOCK = 48, FEW = 16;

template <class Finish>
INLINE void multiply(const Linear& l, const Rows& a, int rows, float* y, Finish finish) {
  alignas(LINE) int32_t products[(BLOCK + FEW) * 64];
  const int steps = l.digits / 4, each = a.fine ? 2 : 1;
  const uint8_t* panel = l.weights;
  for (int n = 0; n < l.out; n += 64) {
    const int vectors = std::min(64, l.out - n) / COLUMNS;
    for (int first = 0, count; first < rows; first += count) {
      count = rows - first < BLOCK / each + FEW / each ? rows - first : BLOCK / each;
      product<Tiles>(&a.digits[first * each * a.stride], a.stride, count * each, panel,
                     64 * vectors, vectors, steps, products, 64);
      for (int r = 0; r < count; r++) {
        const float scale = a.scales[first + r], shift = a.shifts[first + r];
        const int32_t* offsets = &a.offsets[(first + r) * each];
        for (int i = 0; i < COLUMNS * vectors; i += LANES) {
          const int at = n + i;
          float* p = y + (size_t)(first + r) * l.out + at;
          Floats constant = multiply_add(load(l.sums + at), all(shift), load(l.bias + at));
          const int32_t* sums = products + r * each * 64 + i;
          Floats value = to_floats(load(sums) - offsets[0]);
          if (a.fine) {
            const Floats low = to_floats(load(sums + 64) - offsets[1]);
            value = multiply_add(value, all(1 << FINE_BITS), low);
          }
          store(p, finish(p, multiply_add(value, load(l.scales + at) * scale, constant)));
        }
      }
    }
    panel += (size_t)vectors * 64 * steps;
  }
}

static void normalize(const Norm& norm, float* x, int width, float epsilon) {
  constexpr int PARTS = COLUMNS / LANES;
  Floats totals[PARTS]{}, squares[PARTS]{};
  for (int i = 0; i < width; i += COLUMNS)
    for (int part = 0; part < PARTS; part++) totals[part] += load(x + i + part * LANES);
  for (int part = 1; part < PARTS; part++) totals[0] += totals[part];
  const float mean = sum(totals[0]) / width;
  for (int i = 0; i < width; i += COLUMNS)
    for (int part = 0; part < PARTS; part++) {
      Floats d = load(x + i + part * LANES) - mean;
      squares[part] = multiply_add(d, d, squares[part]);
    }
  for (int part = 1; part < PARTS; part++) squares[0] += squares[part];
  const float factor = 1.f / std::sqrt(sum(squares[0]) / width + epsilon);
  for (int i = 0; i < width; i += LANES)
    store(x + i, multiply_add((load(x + i) - mean) * factor, load(norm.weight + i),
                              load(norm.bias + i)));
}

// Attention of one text, a head at a time. Queries and keys have a scale for each token, values one
// for each channel. Weights are relative to the largest of their query, and have two digits: where a
// token has half the weight, hundreds of others share what one digit rounds to zero.
class Attention {
 public:
  explicit Attention(const Network& n)
      : width_(n.width), heads_(n.heads), size_(n.width / n.heads), bits_(n.bits),
        half_(1 << n.bits) {}

  // parts: [length][3][width], mixed: [length][width].
  void operator()(const float* parts, int length, float* mixed) {
    padded_ = (length + 63) / 64 * 64;
    fours_ = (length + 3) / 4 * 4;
    keys_.resize((size_t)padded_ * size_);
    values_.resize((size_t)fours_ * size_);
    queries_.resize((size_t)length * size_);
    query_scales_.resize(length);
    offsets_.resize(length);
    key_scales_.resize(padded_);
    value_scales_.resize(size_);
    value_sums_.resize(size_);
    for (auto& digits : weights_) digits.resize((size_t)QUERIES * fours_ + LANES);
    scores_.resize((size_t)QUERIES * padded_);
    for (int head = 0; head < heads_; head++) {
      const float* part = parts + head * size_;
      take_queries_and_keys(part, length);
      take_values(part + 2 * width_, length);
      for (int first = 0; first < length; first += QUERIES)
        mix(first, std::min(QUERIES, length - first), length,
            mixed + (size_t)first * width_ + head * size_);
    }
  }

 private:
  static constexpr int QUERIES = 24;

  void take_queries_and_keys(const float* part, int length) {
    // Powers of two take the place of those of e.
    const float factor = 1.44269504f / std::sqrt((float)size_);
    for (int i = 0; i < padded_; i++) {
      uint8_t* panel = &keys_[(size_t)(i / 64) * 64 * size_ + i % 64 * 4];
      if (i >= length) {
        key_scales_[i] = 0;
        for (int step = 0; step < size_ / 4; step++) memset(panel + step * 256, 128, 4);
        continue;
      }
      const float *query = part + (size_t)i * 3 * width_, *key = query + width_;
      Floats most_query{}, most_key{};
      for (int j = 0; j < size_; j += LANES) {
        most_query = larger(most_query, absolute(load(query + j)));
        most_key = larger(most_key, absolute(load(key + j)));
      }
      const float query_scale = largest(most_query) * (1.f / (half_ - 1));
      const float key_scale = largest(most_key) * (1.f / 127.f);
      Ints total{};
      for (int j = 0; j < size_; j += LANES) {
        Ints q = nearest(load(query + j) * inverse(query_scale));
        total += q;
        store_bytes(&queries_[(size_t)i * size_ + j], q);
        uint8_t bytes[LANES];
        store_bytes(bytes, nearest(load(key + j) * inverse(key_scale)) + 128);
        for (int four = 0; four < LANES / 4; four++)
          memcpy(panel + (size_t)(j / 4 + four) * 256, bytes + 4 * four, 4);
      }
      query_scales_[i] = query_scale * factor;
      offsets_[i] = MIDDLE * sum(total);
      key_scales_[i] = key_scale;
    }
  }

  void take_values(const float* value, int length) {
    const size_t row = 3 * (size_t)width_;
    for (int j = 0; j < size_; j += LANES) {
      Floats most{};
      for (int i = 0; i < length; i++) most = larger(most, absolute(load(value + i * row + j)));
      Floats scale = most * (1.f / 127.f);
      Floats factor = scale > 0.f ? 1.f / scale : scale;
      Ints total{};
      for (int i = 0; i < fours_; i += 4) {
        Ints packed{};
        for (int four = 0; four < 4; four++) {
          Ints v{};
          if (i + four < length) v = nearest(load(value + (i + four) * row + j) * factor);
          total += v;
          packed |= (v + 128) << (8 * four);
        }
        memcpy(&values_[(size_t)i * size_ + 4 * j], &packed, sizeof packed);
      }
      store(&value_scales_[j], scale);
      store(&value_sums_[j], total * half_);
    }
  }

  void mix(int first, int count, int length, float* mixed) {
    for (int at = 0; at < length; at += 64)
      product<ATTENTION_TILES>(&queries_[(size_t)first * size_], size_, count,
                               &keys_[(size_t)at * size_], 256,
                               std::min(4, (length - at + 15) / COLUMNS), size_ / 4, &scores_[at],
                               padded_);
    const float base = 2 * half_;
    float factors[QUERIES];
    int32_t offsets[2][QUERIES];
    for (int r = 0; r < count; r++) {
      const size_t row = (size_t)r * fours_;
      const Sums sums = weigh(&scores_[(size_t)r * padded_], offsets_[first + r],
                              query_scales_[first + r], length, &weights_[0][row], &weights_[1][row]);
      factors[r] = 1.f / (sums.high * base + sums.low);
      offsets[0][r] = MIDDLE * (sums.high - half_ * fours_);
      offsets[1][r] = MIDDLE * (sums.low - half_ * fours_);
    }
    for (int at = 0; at < size_; at += 64) {
      alignas(LINE) int32_t sums[2][QUERIES * 64];
      const int vectors = std::min(4, (size_ - at) / COLUMNS);
      for (int digit = 0; digit < 2; digit++)
        product<ATTENTION_TILES>(weights_[digit].data(), fours_, count, &values_[4 * at], 4 * size_,
                                 vectors, fours_ / 4, sums[digit], 64);
      for (int r = 0; r < count; r++)
        for (int i = 0; i < COLUMNS * vectors; i += LANES) {
          const int j = at + i, from = r * 64 + i;
          Floats high = to_floats(load(sums[0] + from) - offsets[0][r] + load(&value_sums_[j]));
          Floats low = to_floats(load(sums[1] + from) - offsets[1][r] + load(&value_sums_[j]));
          Floats mean = multiply_add(high, all(base), low) * factors[r];
          store(mixed + (size_t)r * width_ + j, mean * load(&value_scales_[j]));
        }
    }
  }

  struct Sums {
    int32_t high, low;
  };

  // The digits of a query's weights, less half of their range, and their sums. The scores are
  // overwritten.
  Sums weigh(int32_t* scores, int32_t offset, float scale, int length, int8_t* highs, int8_t* lows) {
    Ints lanes{};
    for (int i = 0; i < LANES; i++) lanes[i] = i;
    const Floats none = all(-1e30f);
    Floats most = none;
    for (int i = 0; i < length; i += LANES) {
      Floats score = to_floats(load(scores + i) - offset) * (load(&key_scales_[i]) * scale);
      if (i + LANES > length) score = lanes + i < length ? score : none;
      most = larger(most, score);
      Ints bits = (Ints)score;
      store(scores + i, bits);
    }
    const int base = 2 * half_;
    const float at_most = largest(most) - std::log2((float)((base - 1) * base));
    Ints high_total{}, low_total{};
    for (int i = 0; i < length; i += LANES) {
      const Ints weight = nearest(power_of_two((Floats)load(scores + i) - at_most));
      const Ints high = weight >> (bits_ + 1), low = weight & (base - 1);
      high_total += high;
      low_total += low;
      store_bytes(highs + i, high - half_);  // behind the row is the next one, written later
      store_bytes(lows + i, low - half_);
    }
    return {sum(high_total), sum(low_total)};
  }

  int width_, heads_, size_, bits_, half_, padded_ = 0, fours_ = 0;
  Buffer<uint8_t> keys_, values_;
  Buffer<int8_t> queries_, weights_[2];
  Buffer<float> query_scales_, key_scales_, value_scales_;
  Buffer<int32_t> offsets_, value_sums_, scores_;
};

// [tokens][width] of the first layer's input.
static void embed(const Network& n, const Texts& texts, float* x) {
  const int32_t* token = texts.tokens;
  for (int text = 0; text < texts.count; text++)
    for (int i = 0; i < texts.lengths[text]; i++, token++, x += n.width) {
      const int8_t* word = n.words + (size_t)*token * n.width;
      const Floats scale = all(n.word_scales[*token]);
      for (int j = 0; j < n.width; j += LANES) {
        Bytes bytes;
        memcpy(&bytes, word + j, sizeof bytes);
        Floats value = to_floats(__builtin_convertvector(bytes, Ints));
        store(x + j, multiply_add(value, scale, load(n.positions + (size_t)i * n.width + j)));
      }
      normalize(n.norm, x, n.width, n.epsilon);
    }
}

static void run(const Network& n, const Texts& texts) {
  const size_t width = n.width;
  size_t tokens = 0;
  for (int i = 0; i < texts.count; i++) tokens += texts.lengths[i];
  Buffer<float> x(tokens * width), parts(tokens * 3 * width), mixed(tokens * width);
  Buffer<float> inner((size_t)BLOCK * n.inner);
  Rows rows;
  rows.most = (1 << n.bits) - 1;
  Attention attend(n);
  embed(n, texts, x.data());
  for (int number = 0; number < n.layers; number++) {
    const Layer& layer = n.layer[number];
    const size_t many = 4 * BLOCK;
    for (size_t at = 0; at < tokens; at += many) {
      const int count = (int)std::min(many, tokens - at);
      quantize<false>(layer.attention, &x[at * width], count, rows, is_fine(texts.lengths[0]));
      multiply(layer.attention, rows, count, &parts[at * 3 * width], Keep());
    }
    size_t start = 0;
    for (int i = 0; i < texts.count; start += texts.lengths[i++])
      attend(&parts[start * 3 * width], texts.lengths[i], &mixed[start * width]);
    // What lies between the layers stays in the second cache.
    for (size_t at = 0; at < tokens; at += BLOCK) {
      const int count = (int)std::min((size_t)BLOCK, tokens - at);
      float* hidden = &x[at * width];
      quantize<false>(layer.attended, &mixed[at * width], count, rows);
      multiply(layer.attended, rows, count, hidden, Add());
      for (int r = 0; r < count; r++) normalize(layer.first, hidden + r * width, n.width, n.epsilon);
      quantize<false>(layer.inner, hidden, count, rows);
      multiply(layer.inner, rows, count, inner.data(), Gelu());
      quantize<true>(layer.outer, inner.data(), count, rows);
      multiply(layer.outer, rows, count, hidden, Add());
      for (int r = 0; r < count; r++)
        normalize(layer.second, hidden + r * width, n.width, n.epsilon);
    }
  }
  const float* hidden = x.data();
  for (int i = 0; i < texts.count; i++) {
    const int length = texts.lengths[i];
    memcpy(texts.cls + i * width, hidden, width * sizeof(float));
    for (size_t j = 0; j < width; j += LANES) {
      Floats total{};
      for (int at = 0; at < length; at++) total += load(hidden + at * width + j);
      store(texts.means + i * width + j, total / all((float)length));
    }
    for (size_t j = 0; texts.maxima && j < width; j += LANES) {
      Floats most = load(hidden + j);
      for (int at = 1; at < length; at++) most = larger(most, load(hidden + at * width + j));
      store(texts.maxima + i * width + j, most);
    }
    hidden += length * width;
  }
}
