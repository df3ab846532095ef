// Vectors of a random network by every level of instructions, compared with the scalar one:
// tests/indexer/test_native_library.py.
#include <cstdio>
#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <vector>

#include "network.h"

extern "C" {
const char* encoder_level(int number);
int encoder_run(int level, const encoder::Network*, const encoder::Texts*, int threads);
}

namespace {

constexpr int WIDTH = 96, HEADS = 2, INNER = 208, LAYERS = 2, WORDS = 50, LONGEST = 130;
std::mt19937 random_bits(1);
std::deque<std::vector<char>> kept;

template <class T, class Draw>
T* drawn(size_t count, Draw draw) {
  std::vector<char>& bytes = kept.emplace_back(count * sizeof(T));
  T* values = reinterpret_cast<T*>(bytes.data());
  for (size_t i = 0; i < count; i++) values[i] = (T)draw();
  return values;
}
float normal() { return std::normal_distribution<float>()(random_bits); }
int below(int limit) { return std::uniform_int_distribution<int>(0, limit - 1)(random_bits); }

encoder::Linear linear(int in, int out) {
  constexpr int MORE = 12;
  encoder::Linear l{in, in + MORE, out};
  l.weights = drawn<uint8_t>((size_t)l.digits * out, [] { return 1 + below(255); });
  l.scales = drawn<float>(out, [] { return 0.002f + 0.001f * below(9); });
  l.bias = drawn<float>(out, normal);
  l.sums = drawn<float>(out, normal);
  float* shares = drawn<float>(in, [] { return 1; });
  int32_t* channels = drawn<int32_t>(MORE, [] { return -1; });
  for (int i = 0; i < 8; i++) channels[i] = 7 + 40 * (i / 4);  // two channels have five digits
  shares[7] = shares[47] = 0.2f;
  l.shares = shares;
  l.channels = channels;
  return l;
}
encoder::Norm norm() {
  float* weight = drawn<float>(WIDTH, [] { return 1 + normal() / 9; });
  weight[7] = weight[47] = 9;
  return {weight, drawn<float>(WIDTH, normal)};
}

}  // namespace

int main() {
  std::vector<encoder::Layer> layers;
  for (int i = 0; i < LAYERS; i++)
    layers.push_back({linear(WIDTH, 3 * WIDTH), linear(WIDTH, WIDTH), linear(WIDTH, INNER),
                      linear(INNER, WIDTH), norm(), norm()});
  encoder::Network network{WIDTH, HEADS, LAYERS, INNER, 7, 1e-12f};
  network.words = drawn<int8_t>(WORDS * WIDTH, [] { return below(255) - 127; });
  network.word_scales = drawn<float>(WORDS, [] { return 0.01f + 0.01f * below(9); });
  network.positions = drawn<float>(LONGEST * WIDTH, normal);
  network.norm = norm();
  network.layer = layers.data();

  const std::vector<int32_t> lengths = {1, 2, 3, 5, 16, 31, 32, 33, 47, 48, 63, 64, 65, LONGEST};
  size_t tokens = 0;
  for (int32_t length : lengths) tokens += length;
  const int32_t* token = drawn<int32_t>(tokens, [] { return below(WORDS); });
  const size_t size = lengths.size() * WIDTH;
  std::vector<std::string> names;
  for (int level = 0; encoder_level(level); level++) names.push_back(encoder_level(level));
  std::vector<std::vector<float>> found;
  for (size_t level = 0; level < names.size(); level++) {
    std::vector<float>& vectors = found.emplace_back(3 * size);
    encoder::Texts texts{token, lengths.data(), (int32_t)lengths.size(), vectors.data(),
                         vectors.data() + size, vectors.data() + 2 * size};
    if (encoder_run((int)level, &network, &texts, 2)) return 2;
  }
  int differ = 0;
  for (size_t level = 0; level < names.size(); level++)
    for (size_t i = 0; i < 3 * size; i++)
      differ += memcmp(&found[level][i], &found.back()[i], sizeof(float)) != 0;
  printf("%s and %zu others: %d differ\n", names[0].c_str(), names.size() - 1, differ);
  return differ || names.size() < 2;
}
