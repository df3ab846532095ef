#include "prefix.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kernel {
namespace {

constexpr int kParts = 8;       // partial results: one would wait for every operation
constexpr int kFine = 128;      // a query has two digits of this base
constexpr int kTop = 127;

// The largest magnitude of value(j), j < count.
template <class Value> float largest_of(int64_t count, const Value& value) {
    float parts[kParts] = {};
    auto take = [&](float& part, int64_t j) {
        const float size = std::fabs(value(j));
        part = part < size ? size : part;
    };
    int64_t j = 0;
    for (; j + kParts <= count; j += kParts)
        for (int p = 0; p < kParts; p++) take(parts[p], j + p);
    for (; j < count; j++) take(parts[0], j);
    return *std::max_element(parts, parts + kParts);
}

// To the nearest integer, as std::nearbyint for values below 2^22, which is a call for each.
float rounded(float value) { return (value + 0x1.8p23f) - 0x1.8p23f; }

} // namespace

bool scale_to_one(const float* vector, int64_t dim, float* out) {
    double sums[kParts] = {};
    int64_t j = 0;
    for (; j + kParts <= dim; j += kParts)
        for (int p = 0; p < kParts; p++) sums[p] += double(vector[j + p]) * vector[j + p];
    for (; j < dim; j++) sums[0] += double(vector[j]) * vector[j];
    const double squared = std::accumulate(sums, sums + kParts, 0.0);
    if (!(squared > 0 && std::isfinite(squared))) return false;
    if (std::fabs(squared - 1) <= 0x1p-20) {
        std::copy_n(vector, dim, out);
        return true;
    }
    const double length = std::sqrt(squared);
    for (j = 0; j < dim; j++) out[j] = float(vector[j] / length);
    return true;
}

// A score is the sum of w_j * code_j with w_j = value_j * scale_j.
void quantize(const float* values, const float* scales, int64_t width, int8_t* out) {
    const float largest = largest_of(width, [&](int64_t j) { return values[j] * scales[j]; });
    const float step = largest > 0 ? kTop / largest : 0;
    for (int64_t j = 0; j < width; j++) {
        const float value = rounded(values[j] * scales[j] * step);
        out[j] = int8_t(int32_t(std::max(-127.0f, std::min(127.0f, value))));
    }
}

PrefixRotation::PrefixRotation(const Graph& graph)
    : width_(graph.width), dim_(graph.dim), scales_(graph.width) {
    if (!graph.matrix) return;
    const int64_t lines = padded(dim_, kCodeBlock);
    blocks_.resize(padded(width_, kBlockCodes) / kBlockCodes * lines);
    std::vector<uint8_t> codes(kBlockCodes * dim_, 128);
    std::vector<int32_t> rows(kBlockCodes);
    std::iota(rows.begin(), rows.end(), 0);
    for (int64_t i = 0; i < width_; i++) {
        const float* row = graph.matrix + i * dim_;
        scales_[i] = largest_of(dim_, [&](int64_t j) { return row[j]; }) / kTop;
        for (int64_t j = 0; j < dim_ && scales_[i] > 0; j++)
            codes[i % kBlockCodes * dim_ + j] = uint8_t(128 + int(rounded(row[j] / scales_[i])));
        if (i % kBlockCodes == kBlockCodes - 1 || i == width_ - 1)
            pack_codes(codes.data(), dim_, rows.data(), kBlockCodes,
                       blocks_[i / kBlockCodes * lines].bytes);
    }
}

void PrefixRotation::rotate(const float* query, const Level& level, float* prefix) const {
    if (blocks_.empty()) {
        std::copy_n(query, width_, prefix);
        return;
    }
    // A few dimensions of some encoders are so large that 8 bits are too coarse for the others: each
    // number of the query has two digits, and the codes are multiplied by one, then by the other.
    std::vector<int8_t> high(padded(dim_, kCodeBlock)), low(high.size());
    const float step = largest_of(dim_, [&](int64_t j) { return query[j]; }) / (kTop * kFine);
    const float inverse = 1 / step;
    int32_t high_total = 0, low_total = 0;
    for (int64_t j = 0; j < dim_; j++) {
        const int32_t value = int32_t(rounded(query[j] * inverse));
        const int32_t digit = (value + kFine / 2) >> 7;
        high[j] = int8_t(digit);
        low[j] = int8_t(value - digit * kFine);
        high_total += digit;
        low_total += value - digit * kFine;
    }
    for (int64_t first = 0; first < width_; first += kBlockCodes) {
        const uint8_t* block = blocks_[first / kBlockCodes * int64_t(high.size())].bytes;
        int32_t upper[kBlockCodes], lower[kBlockCodes];
        level.block(block, dim_, high.data(), 0, upper);
        level.block(block, dim_, low.data(), 0, lower);
        for (int64_t i = 0; i < std::min<int64_t>(kBlockCodes, width_ - first); i++) {
            const int64_t sum = kFine * (int64_t(upper[i]) - 128 * high_total) +
                                (int64_t(lower[i]) - 128 * low_total);
            prefix[first + i] = float(sum) * (scales_[first + i] * step);
        }
    }
}

} // namespace kernel
