// Compares the scores of the NEON level with those of the scalar one: tests/indexer/test_native_library.py.
#include "prefix.h"
#include "scores.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

using namespace kernel;

int main() {
    const Level &neon = levels().front(), &scalar = levels().back();
    if (std::strcmp(neon.name, "neon") != 0) return 2;
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    long compared = 0, different = 0;
    for (int width = 1; width <= 400; width++)
        for (int extreme = 0; extreme < 3; extreme++) { // where saturation would show
            std::vector<uint8_t> codes(7 * width);
            std::vector<int8_t> query((width + kCodeBlock - 1) / kCodeBlock * kCodeBlock, 0);
            for (auto& code : codes) code = extreme ? 255 : random() % 256;
            for (int j = 0; j < width; j++)
                query[j] = extreme == 1 ? 127 : extreme == 2 ? -127 : int(random() % 255) - 127;
            const int32_t rows[9] = {3, 1, 0, 6, 6, 2, 5, 4, 1};
            int32_t a[9], b[9];
            neon.codes(codes.data(), width, query.data(), rows, 9, a);
            scalar.codes(codes.data(), width, query.data(), rows, 9, b);
            different += std::memcmp(a, b, sizeof a) != 0;
            std::vector<uint8_t> block(query.size() * kBlockCodes);
            pack_codes(codes.data(), width, rows, 9, block.data());
            int32_t all[2][kBlockCodes];
            const int32_t least = a[random() % 9];
            const auto above = neon.block(block.data(), width, query.data(), least, all[0]);
            different += above != scalar.block(block.data(), width, query.data(), least, all[1]);
            different += std::memcmp(all[0], all[1], sizeof all[0]) != 0;
            different += std::memcmp(all[0], a, sizeof a) != 0;
            compared += 2;
        }
    for (int dim = 1; dim <= 300; dim++)
        for (int shift = 0; shift < 4; shift++) { // rows start at any byte
            std::vector<float> query((dim + kLanes - 1) / kLanes * kLanes, 0);
            for (int j = 0; j < dim; j++) query[j] = normal(random);
            std::vector<uint8_t> memory(4 * dim + shift);
            uint8_t* row = memory.data() + shift;
            for (int j = 0; j < dim; j++) { // finite halves, subnormal ones too
                const uint16_t half = (random() & 0x83ff) | ((random() % 31) << 10);
                std::memcpy(row + 2 * j, &half, 2);
            }
            different += neon.half(row, query.data(), dim) != scalar.half(row, query.data(), dim);
            for (int j = 0; j < dim; j++) {
                const float value = normal(random);
                std::memcpy(row + 4 * j, &value, 4);
            }
            different +=
                neon.single(row, query.data(), dim) != scalar.single(row, query.data(), dim);
            compared += 2;
        }
    for (int room = kPoolBlock; room <= 64; room += kPoolBlock) {
        std::vector<int64_t> a(room + 1, INT64_MIN), keys(3 * room);
        a[room] = INT64_MAX;
        for (auto& key : keys) key = int64_t(random()) - (int64_t(1) << 31);
        std::vector<int64_t> b = a;
        neon.insert(a.data(), room, keys.data(), int(keys.size()));
        scalar.insert(b.data(), room, keys.data(), int(keys.size()));
        std::sort(keys.rbegin(), keys.rend());
        different += a != b || !std::equal(keys.begin(), keys.begin() + room, a.rbegin() + 1);
        compared++;
    }
    for (int dim : {5, 96, 131}) {
        std::vector<float> query(dim), matrix(dim * dim), a(dim), b(dim);
        for (auto* values : {&query, &matrix})
            for (float& value : *values) value = normal(random);
        Graph graph = {};
        graph.width = graph.dim = dim;
        graph.matrix = matrix.data();
        const PrefixRotation rotation(graph);
        rotation.rotate(query.data(), neon, a.data());
        rotation.rotate(query.data(), scalar, b.data());
        different += a != b;
        compared++;
    }
    std::printf("%ld compared, %ld differ\n", compared, different);
    return different != 0;
}
