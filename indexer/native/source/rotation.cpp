#include "rotation.h"

#include <cmath>
#include <vector>

namespace kernel {

double rotate(const float* query, const float* rotation, int64_t dim, const Level& level,
              float* out) {
    constexpr int kSums = 4; // one sum would wait for every addition
    double sums[kSums] = {};
    for (int64_t j = 0; j < dim; j++) sums[j % kSums] += double(query[j]) * query[j];
    const double squared = (sums[0] + sums[1]) + (sums[2] + sums[3]), length = std::sqrt(squared);
    thread_local std::vector<float> unit;
    unit.assign((dim + kLanes - 1) / kLanes * kLanes, 0);
    for (int64_t j = 0; j < dim; j++) unit[j] = float(query[j] / length);
    int64_t i = 0;
    if (level.four && dim % kLanes == 0)
        for (; i + 4 <= dim; i += 4) {
            const float* rows[4];
            for (int r = 0; r < 4; r++) rows[r] = rotation + (i + r) * dim;
            level.four(unit.data(), rows, dim, out + i);
        }
    for (; i < dim; i++)
        out[i] = level.single(reinterpret_cast<const uint8_t*>(rotation + i * dim), unit.data(), dim);
    return squared;
}

} // namespace kernel
