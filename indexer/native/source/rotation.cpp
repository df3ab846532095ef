#include "rotation.h"

#include <cmath>
#include <vector>

namespace kernel {
namespace {

int64_t padded(int64_t size) { return (size + kLanes - 1) / kLanes * kLanes; }

// out[i] is the inner product of row i and a vector, which is padded with zeros.
void products(const float* rows, int64_t count, int64_t dim, const float* vector,
              const Level& level, float* out) {
    int64_t i = 0;
    if (level.four && dim % kLanes == 0)
        for (; i + 4 <= count; i += 4) {
            const float* four[4];
            for (int r = 0; r < 4; r++) four[r] = rows + (i + r) * dim;
            level.four(vector, four, dim, out + i);
        }
    for (; i < count; i++)
        out[i] = level.single(reinterpret_cast<const uint8_t*>(rows + i * dim), vector, dim);
}

} // namespace

double rotate(const float* query, const Rotation& rotation, const Level& level, float* out) {
    const int64_t dim = rotation.dim, span = rotation.span;
    constexpr int kSums = 4; // one sum would wait for every addition
    double sums[kSums] = {};
    for (int64_t j = 0; j < dim; j++) sums[j % kSums] += double(query[j]) * query[j];
    const double squared = (sums[0] + sums[1]) + (sums[2] + sums[3]), length = std::sqrt(squared);
    thread_local std::vector<float> unit, inner, weights;
    unit.assign(padded(dim), 0);
    for (int64_t j = 0; j < dim; j++) unit[j] = float(query[j] / length);
    if (span == 0) {
        products(rotation.rows, dim, dim, unit.data(), level, out);
        return squared;
    }
    inner.assign(padded(span), 0);
    weights.resize(span);
    products(rotation.rows, span, dim, unit.data(), level, inner.data());
    products(rotation.inverse, span, span, inner.data(), level, weights.data());
    for (int64_t j = 0; j < span; j++) 
        out[j] = rotation.signs[j] * (unit[j] - inner[j]);
    for (int64_t j = span; j < dim; j++) out[j] = unit[j];
    level.subtract(rotation.rows + span, dim, weights.data(), span, dim - span, out + span);
    return squared;
}

} // namespace kernel
