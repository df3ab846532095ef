#include "build.h"
#include "run.h"

#include <algorithm>
#include <cmath>

namespace kernel {
namespace {

constexpr int kChunk = 15;          // neighbours that a candidate is compared with at once

} // namespace

// Held while the links of a node are changed.
class Builder::Lock {
  public:
    explicit Lock(std::atomic<uint8_t>& flag) : flag_(flag) {
        while (flag_.exchange(1, std::memory_order_acquire)) std::this_thread::yield();
    }
    ~Lock() { flag_.store(0, std::memory_order_release); }

  private:
    std::atomic<uint8_t>& flag_;
};

Builder::Builder(const Graph& graph, Link* links, const float* lowest, const Level& level, int ef)
    : graph_(graph), links_(links), level_(level), ef_(ef),
      stride_(padded(graph.width, kCodeBlock)), lowest_(lowest, lowest + graph.width),
      queries_(graph.size * stride_), locks_(new std::atomic<uint8_t>[graph.size]()) {
    std::vector<float> values(graph.width);
    quantize(int32_t(graph.entry), values);
}

void Builder::insert(const int32_t* nodes, int64_t count, int threads) {
    std::atomic<int64_t> taken{0};
    run_in_threads(threads, [&](int) { run(nodes, count, taken); });
}

void Builder::run(const int32_t* nodes, int64_t count, std::atomic<int64_t>& taken) {
    struct Turn {
        std::unique_ptr<Walk> walk;
        int32_t node = 0;
        int level = 0;
        bool gathered = false;
    };
    Scratch scratch;
    scratch.candidates.resize(std::max(ef_, kMaxDegree + 1));
    scratch.values.resize(graph_.width);
    Turn turns[kInterleaved];
    auto start = [&](Turn& turn, int level) {
        turn.level = level;
        turn.gathered = false;
        turn.walk->start(query(turn.node), ef_, level);
    };
    auto draw = [&](Turn& turn) { // false after the last
        do {
            const int64_t i = taken.fetch_add(1);
            if (i >= count) return false;
            turn.node = nodes[i];
        } while (turn.node == graph_.entry); // linked by the others
        quantize(turn.node, scratch.values);
        start(turn, 0);
        return true;
    };
    int active = 0;
    while (active < kInterleaved) {
        if (!turns[active].walk) turns[active].walk = std::make_unique<Walk>(graph_, level_);
        if (!draw(turns[active])) break;
        active++;
    }
    take_turns(turns, active, [&](Turn& turn) {
        link(turn.node, turn.level, turn.walk->best(scratch.candidates.data()), scratch);
        if (turn.level + 1 == graph_.node_levels[turn.node]) return draw(turn);
        // Upwards: whoever comes from above to a node finds its links below.
        start(turn, turn.level + 1);
        return true;
    });
}

void Builder::quantize(int32_t node, std::vector<float>& values) {
    const uint8_t* code = graph_.code(node);
    for (int64_t j = 0; j < graph_.width; j++)
        values[j] = lowest_[j] + (float(code[j]) + 0.5f) * graph_.scales[j];
    kernel::quantize(values.data(), graph_.scales, graph_.width, queries_.data() + node * stride_);
}

// Links a node on a level to its neighbours among `found` candidates, and them to it.
void Builder::link(int32_t node, int level, int found, Scratch& scratch) {
    const int degree = graph_.degree(level);
    choose(node, scratch.candidates.data(), found, degree, scratch);
    scratch.neighbours.assign(scratch.kept.begin() + 1, scratch.kept.end());
    {
        const Lock lock(locks_[node]);
        write(links_of(node, level), degree, scratch);
    }
    for (int32_t each : scratch.neighbours)
        __builtin_prefetch(graph_.links_of(each, level) + degree - 1);
    for (int32_t each : scratch.neighbours) link_back(each, node, level, scratch);
}

void Builder::link_back(int32_t from, int32_t to, int level, Scratch& scratch) {
    const Lock lock(locks_[from]);
    const int degree = graph_.degree(level);
    Link* links = links_of(from, level);
    int count = degree;
    while (count > 0 && links[count - 1] < 0) count--;
    if (count < degree) {
        links[count] = to;
        return;
    }
    std::vector<int32_t>& nodes = scratch.candidates;
    std::copy(links, links + degree, nodes.begin());
    nodes[degree] = to;
    scratch.scores.resize(degree + 1);
    level_.codes(graph_.codes, graph_.width, query(from), nodes.data(), degree + 1,
                 scratch.scores.data());
    scratch.sorted.resize(degree + 1);
    for (int j = 0; j <= degree; j++) scratch.sorted[j] = {-scratch.scores[j], nodes[j]};
    std::sort(scratch.sorted.begin(), scratch.sorted.end());
    for (int j = 0; j <= degree; j++) nodes[j] = scratch.sorted[j].second;
    choose(from, nodes.data(), degree + 1, degree, scratch);
    write(links, degree, scratch);
}

// kept: the node, then at most `most` candidates, best first, that are at least as near to the
// node as to any that is kept.
void Builder::choose(int32_t node, const int32_t* candidates, int count, int most,
                     Scratch& scratch) {
    std::vector<int32_t>& kept = scratch.kept;
    kept.assign(1, node);
    int32_t scores[kChunk + 1];
    for (int i = 0; i < count && int(kept.size()) <= most; i++) {
        if (i + 4 < count) {
            const int8_t* next = query(candidates[i + 4]);
            for (int64_t j = 0; j < stride_; j += 64) __builtin_prefetch(next + j);
        }
        const int32_t candidate = candidates[i];
        int32_t nearest = 0;
        bool good = true;
        for (int first = 0; good && first < int(kept.size()); first += kChunk) {
            const int some = std::min(kChunk, int(kept.size()) - first);
            level_.codes(graph_.codes, graph_.width, query(candidate), kept.data() + first, some,
                         scores);
            if (first == 0) nearest = scores[0];
            for (int j = 0; j < some; j++) good &= scores[j] <= nearest;
        }
        if (good) kept.push_back(candidate);
    }
}

void Builder::write(Link* links, int degree, const Scratch& scratch) {
    const int count = int(scratch.kept.size()) - 1;
    for (int j = 0; j < count; j++) links[j] = scratch.kept[j + 1];
    for (int j = count; j < degree; j++) links[j] = -1;
}

} // namespace kernel
