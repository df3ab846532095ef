#include "build.h"
#include "prefix.h"
#include "run.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <iterator>
#include <numeric>

namespace kernel {
namespace {

constexpr int kChunk = 15;             // neighbours that a candidate is compared with at once
constexpr int64_t kPart = 256;         // nodes that a thread takes at once
constexpr int64_t kGroup = 1000;       // nodes of a group, at most
constexpr int64_t kLeaders = 2000;     // groups that nodes are divided into at once, at most
constexpr int kFilled = 24;            // links of a node on the base level, if it has as many places
constexpr int kGroupCandidates = 13;   // candidates of a node from a group
constexpr double kNewCandidates = 6.4; // those of them that no other group has, on average
constexpr int64_t kMinMemberships = 4; // groups that a node is in, if its level has more than one

// Spare links are stored behind the links as -2 - node, -1 for none; `spare` is its own inverse.
int32_t spare(int32_t link) { return -2 - link; }

// `count` of these nodes, at even distances.
std::vector<int32_t> evenly(const std::vector<int32_t>& nodes, int64_t count) {
    std::vector<int32_t> chosen(count);
    for (int64_t i = 0; i < count; i++) chosen[i] = nodes[nodes.size() * i / count];
    return chosen;
}

} // namespace

struct Builder::Scratch {
    std::vector<int32_t> candidates, kept, pruned, spare, scores;
    std::vector<std::pair<int32_t, int32_t>> sorted; // (-score, node)
    std::vector<float> values;
    std::vector<uint8_t> block;
    std::vector<std::pair<int32_t, int32_t>> best; // see `nearest`
};

Builder::Builder(const Graph& graph, Link* links, const float* lowest, const Level& level,
                 int candidates, int64_t bytes, int threads)
    : graph_(graph), links_(links), level_(level), max_candidates_(candidates), bytes_(bytes),
      stride_(padded(graph.width, kCodeBlock)), lowest_(lowest, lowest + graph.width),
      queries_(graph.size * stride_), nodes_(graph.size) {
    std::iota(nodes_.begin(), nodes_.end(), 0);
    for_nodes(threads, [&](int64_t i, Scratch& scratch) {
        scratch.values.resize(graph_.width);
        quantize(int32_t(i), scratch.values);
    });
}

// Calls each(number among the nodes, scratch).
template <class Each> void Builder::for_nodes(int threads, const Each& each) const {
    const int64_t count = nodes_.size();
    std::atomic<int64_t> taken{0};
    run_in_threads(threads, [&](int) {
        Scratch scratch;
        for (int64_t first; (first = taken.fetch_add(kPart)) < count;)
            for (int64_t i = first; i < std::min(first + kPart, count); i++) each(i, scratch);
    });
}

void Builder::quantize(int32_t node, std::vector<float>& values) {
    const uint8_t* code = graph_.code(node);
    for (int64_t j = 0; j < graph_.width; j++)
        values[j] = lowest_[j] + (float(code[j]) + 0.5f) * graph_.scales[j];
    kernel::quantize(values.data(), graph_.scales, graph_.width, queries_.data() + node * stride_);
}

// best: for each of the nodes `from` the `most` of `among` that are nearest to it, itself excepted,
// as (-score, place) in that order, with a place of -1 where there are no more.
void Builder::nearest(const int32_t* from, int64_t count, const int32_t* among, int64_t size,
                      int most, Scratch& scratch) const {
    scratch.best.assign(count * most, {INT32_MAX, -1});
    scratch.block.resize(kBlockCodes * stride_);
    int32_t scores[kBlockCodes];
    for (int64_t first = 0; first < size; first += kBlockCodes) {
        const int packed = int(std::min<int64_t>(kBlockCodes, size - first));
        const uint64_t filled = ~uint64_t(0) >> (kBlockCodes - packed);
        pack_codes(graph_.codes, graph_.width, among + first, packed, scratch.block.data());
        for (int64_t i = 0; i < count; i++) {
            auto* best = scratch.best.data() + i * most;
            const auto& last = best[most - 1];
            uint64_t better = filled & level_.block(scratch.block.data(), graph_.width,
                                                    query(from[i]), -last.first, scores);
            for (; better; better &= better - 1) {
                const int j = __builtin_ctzll(better);
                if (scores[j] <= -last.first || among[first + j] == from[i]) continue;
                int at = most - 1;
                for (; at > 0 && -best[at - 1].first < scores[j]; at--) best[at] = best[at - 1];
                best[at] = {-scores[j], int32_t(first + j)};
            }
        }
    }
}

int64_t Builder::divide(const int32_t* nodes, int64_t count, int at_level, int threads) {
    nodes_.assign(nodes, nodes + count);
    at_level_ = at_level;
    degree_ = graph_.degree(at_level);
    if (count <= kGroup) {
        memberships_ = per_round_ = 1;
        found_ = std::max(1, std::min(max_candidates_, int(count) - 1));
        leader_of_.assign(count, 0);
        leaders_.clear();
        return 1;
    }
    // A leader is in the groups of others, so there is a group more than a node is in.
    const int64_t most_groups = std::min(kLeaders, count);
    const int64_t memberships = std::lround(max_candidates_ / kNewCandidates);
    memberships_ = int(std::clamp(memberships, kMinMemberships, most_groups - 1));
    found_ = kGroupCandidates;
    const int64_t fitting = bytes_ / (count * found_ * int64_t(sizeof(int32_t)));
    per_round_ = int(std::max<int64_t>(1, std::min<int64_t>(fitting, memberships_)));
    // Groups are around nodes that are spread evenly. A node goes to the nearest of these.
    const int64_t groups =
        std::clamp<int64_t>(count * memberships_ / kGroup, memberships_ + 1, most_groups);
    leaders_ = evenly(nodes_, groups);
    leader_of_.resize(count * memberships_);
    std::atomic<int64_t> taken{0};
    run_in_threads(threads, [&](int) {
        Scratch scratch;
        for (int64_t first; (first = taken.fetch_add(kPart)) < count;) {
            const int64_t batch = std::min(kPart, count - first);
            nearest(nodes_.data() + first, batch, leaders_.data(), groups, memberships_, scratch);
            for (int64_t i = 0; i < batch * memberships_; i++)
                leader_of_[first * memberships_ + i] = uint16_t(scratch.best[i].second);
        }
    });
    return (memberships_ + per_round_ - 1) / per_round_;
}

int64_t Builder::group(int64_t round) {
    const int64_t count = nodes_.size(), first = round * per_round_;
    const int64_t last = std::min<int64_t>(first + per_round_, memberships_);
    entries_.clear();
    starts_.assign(1, 0);
    candidates_.assign(count * per_round_ * found_, -1);
    std::vector<Entries> parts;
    for (int64_t i = 0; i < count; i++)
        for (int64_t each = first; each < last; each++) {
            const size_t leader = leader_of_[i * memberships_ + each];
            if (leader >= parts.size()) parts.resize(leader + 1);
            parts[leader].push_back(int32_t(i * per_round_ + each - first));
        }
    for (Entries& part : parts) split(std::move(part));
    return int64_t(starts_.size()) - 1;
}

void Builder::add_group(const int32_t* entries, int64_t count) {
    entries_.insert(entries_.end(), entries, entries + count);
    starts_.push_back(int64_t(entries_.size()));
}

// Adds entries as one group, or as several that do not overlap.
void Builder::split(Entries entries) {
    const int64_t count = entries.size();
    if (count <= kGroup) {
        if (count > 0) add_group(entries.data(), count);
        return;
    }
    const int64_t groups = std::min(kLeaders, 2 * count / kGroup);
    std::vector<int32_t> nodes(count);
    for (int64_t i = 0; i < count; i++) nodes[i] = node_of(entries[i]);
    const std::vector<int32_t> leaders = evenly(nodes, groups);
    Scratch scratch;
    nearest(nodes.data(), count, leaders.data(), groups, 1, scratch);
    std::vector<Entries> parts(groups);
    for (int64_t i = 0; i < count; i++) parts[scratch.best[i].second].push_back(entries[i]);
    for (Entries& part : parts) {
        const int64_t size = part.size();
        if (size <= count - count / 4) {
            split(std::move(part));
        } else { // equal or nearly equal codes
            for (int64_t first = 0; first < size; first += kGroup)
                add_group(part.data() + first, std::min(kGroup, size - first));
        }
    }
}

void Builder::compare(int64_t first, int64_t last, int threads) {
    std::atomic<int64_t> taken{first};
    run_in_threads(threads, [&](int) {
        Scratch scratch;
        std::vector<int32_t> nodes;
        for (int64_t group; (group = taken.fetch_add(1)) < last;) {
            const int32_t* entries = entries_.data() + starts_[group];
            const int64_t count = starts_[group + 1] - starts_[group];
            nodes.resize(count);
            for (int64_t i = 0; i < count; i++) nodes[i] = node_of(entries[i]);
            nearest(nodes.data(), count, nodes.data(), count, found_, scratch);
            for (int64_t i = 0; i < count; i++)
                for (int j = 0; j < found_; j++) {
                    const int32_t place = scratch.best[i * found_ + j].second;
                    if (place >= 0) candidates_[int64_t(entries[i]) * found_ + j] = nodes[place];
                }
        }
    });
}

// Sorts candidates by their similarity to a node, and removes those that are there twice.
void Builder::sort_candidates(int32_t node, Scratch& scratch) const {
    std::vector<int32_t>& nodes = scratch.candidates;
    std::sort(nodes.begin(), nodes.end());
    nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
    scratch.scores.resize(nodes.size());
    level_.codes(graph_.codes, graph_.width, query(node), nodes.data(), int(nodes.size()),
                 scratch.scores.data());
    scratch.sorted.resize(nodes.size());
    for (size_t j = 0; j < nodes.size(); j++) scratch.sorted[j] = {-scratch.scores[j], nodes[j]};
    std::sort(scratch.sorted.begin(), scratch.sorted.end());
    for (size_t j = 0; j < nodes.size(); j++) nodes[j] = scratch.sorted[j].second;
}

// Links a node to those candidates, best first, that are at least as near to it as to any that it
// is linked to already.
void Builder::choose(int32_t node, Scratch& scratch) const {
    const std::vector<int32_t>& candidates = scratch.candidates;
    std::vector<int32_t>& kept = scratch.kept; // behind the node itself
    kept.assign(1, node);
    scratch.pruned.clear();
    int32_t scores[kChunk + 1];
    const int count = int(candidates.size());
    for (int i = 0; i < count && int(kept.size()) <= degree_; i++) {
        if (i + 4 < count) {
            const int8_t* next = query(candidates[i + 4]);
            for (int64_t j = 0; j < stride_; j += 64) __builtin_prefetch(next + j);
        }
        const int32_t candidate = candidates[i];
        int32_t nearest = 0;
        bool good = true;
        for (int first = 0; good && first < int(kept.size()); first += kChunk) {
            const int chunk = std::min(kChunk, int(kept.size()) - first);
            level_.codes(graph_.codes, graph_.width, query(candidate), kept.data() + first, chunk,
                         scores);
            if (first == 0) nearest = scores[0];
            for (int j = 0; j < chunk; j++) good &= scores[j] <= nearest;
        }
        (good ? kept : scratch.pruned).push_back(candidate);
    }
    Link* links = links_of(node);
    std::copy(kept.begin() + 1, kept.end(), links);
    const std::vector<int32_t>& pruned = scratch.pruned;
    for (size_t place = kept.size() - 1, i = 0; int(place) < degree_; place++, i++)
        links[place] = at_level_ == 0 && i < pruned.size() ? spare(pruned[i]) : -1;
}

// Makes links of the spare ones of a node, and of others, until there are kFilled: more find more,
// but cost a walk as much as they save.
void Builder::fill(int32_t node, std::vector<int32_t>& others) const {
    Link* links = links_of(node);
    int count = count_of(node);
    const int most = std::min(kFilled, degree_);
    others.insert(others.begin(), links + count, links + degree_);
    for (int32_t other : others)
        if (count < most && other < -1 &&
            std::find(links, links + count, spare(other)) == links + count)
            links[count++] = spare(other);
    std::fill(links + count, links + degree_, -1);
}

void Builder::end(int64_t round, int threads) {
    const int64_t each = int64_t(per_round_) * found_;
    const bool last = (round + 1) * per_round_ >= memberships_;
    for_nodes(threads, [&](int64_t i, Scratch& scratch) {
        const int32_t node = nodes_[i];
        const auto first = candidates_.begin() + i * each;
        std::vector<int32_t>& nodes = scratch.candidates;
        nodes.assign(links_of(node), links_of(node) + count_of(node));
        std::copy_if(first, first + each, std::back_inserter(nodes),
                     [](int32_t candidate) { return candidate >= 0; });
        sort_candidates(node, scratch);
        if (last) {
            if (int(nodes.size()) > max_candidates_) nodes.resize(max_candidates_);
            add_leaders(i, nodes);
            choose(node, scratch);
        } else { // kept as links until then
            std::copy_n(nodes.begin(), std::min<size_t>(nodes.size(), degree_), links_of(node));
        }
    });
    if (!last) return;
    std::vector<int32_t>().swap(candidates_);
    link_back(threads);
    reach_all();
}

// Adds the nodes that the groups of a node are around: they are further away than the others, so
// that links to them lead out of a cluster.
void Builder::add_leaders(int64_t number, std::vector<int32_t>& nodes) const {
    if (leaders_.empty()) return;
    const auto near = nodes.end() - nodes.begin();
    for (int j = 0; j < memberships_; j++) {
        const int32_t leader = leaders_[leader_of_[number * memberships_ + j]];
        const auto end = nodes.begin() + near;
        if (std::find(nodes.begin(), end, leader) == end) nodes.push_back(leader);
    }
}

// Links every node to those that are linked to it; of too many, it chooses. Many places are then
// free, for most candidates of a node are nearer to a neighbour of it than to the node. Of these
// candidates the nearest to the node become links as well, and a walk finds more.
void Builder::link_back(int threads) {
    std::vector<int64_t> ends(graph_.size + 1);
    auto for_links = [&](const auto& each) {
        for (int32_t node : nodes_) {
            const Link* links = links_of(node);
            for (int j = 0; j < degree_ && links[j] >= 0; j++) each(node, links[j]);
        }
    };
    for_links([&](int32_t, int32_t to) { ends[to + 1]++; });
    std::partial_sum(ends.begin(), ends.end(), ends.begin()); // where the sources of a node start
    std::vector<int32_t> sources(ends[graph_.size]);
    for_links([&](int32_t from, int32_t to) { sources[ends[to]++] = from; }); // and now their end
    for_nodes(threads, [&](int64_t i, Scratch& scratch) {
        const int32_t node = nodes_[i];
        Link* links = links_of(node);
        std::vector<int32_t>& nodes = scratch.candidates;
        nodes.assign(links, links + count_of(node));
        nodes.insert(nodes.end(), sources.begin() + (node ? ends[node - 1] : 0),
                     sources.begin() + ends[node]);
        sort_candidates(node, scratch);
        scratch.spare.assign(links + count_of(node), links + degree_);
        if (int(nodes.size()) > degree_)
            choose(node, scratch);
        else
            std::copy(nodes.begin(), nodes.end(), links);
        fill(node, scratch.spare);
    });
}

int Builder::count_of(int32_t node) const {
    const Link* links = links_of(node);
    int count = 0;
    while (count < degree_ && links[count] >= 0) count++;
    return count;
}

// Adds a link to each node that the entry does not reach.
void Builder::reach_all() {
    std::vector<bool> reached(graph_.size);
    std::vector<int32_t> next;
    auto reach = [&](int32_t node) {
        reached[node] = true;
        next.push_back(node);
        while (!next.empty()) {
            const Link* links = links_of(next.back());
            next.pop_back();
            for (int j = 0; j < degree_ && links[j] >= 0; j++)
                if (!reached[links[j]]) {
                    reached[links[j]] = true;
                    next.push_back(links[j]);
                }
        }
    };
    Scratch scratch;
    reach(int32_t(graph_.entry));
    for (int32_t node : nodes_)
        if (!reached[node]) {
            attach(way_to(node, reached, scratch), node);
            reach(node);
        }
}

// The nearest of the nodes that a node is linked to and that are reached; if none is, the nearest
// reached one of evenly spread nodes.
int32_t Builder::way_to(int32_t node, const std::vector<bool>& reached, Scratch& scratch) const {
    const Link* links = links_of(node);
    for (int j = 0; j < degree_ && links[j] >= 0; j++)
        if (reached[links[j]]) return links[j];
    std::vector<int32_t>& nodes = scratch.candidates;
    nodes.assign(1, int32_t(graph_.entry));
    for (int32_t other : evenly(nodes_, std::min<int64_t>(kLeaders, nodes_.size())))
        if (reached[other]) nodes.push_back(other);
    sort_candidates(node, scratch);
    return nodes[0];
}

// Adds a link. If there is no room, it replaces another, which then leads on from `to`: what was
// reached still is, and what `to` alone led to was not reached before.
void Builder::attach(int32_t from, int32_t to) {
    Link* links = links_of(from);
    const int count = count_of(from);
    if (count < degree_) {
        links[count] = to;
        return;
    }
    Link* onward = links_of(to);
    const int32_t replaced = links[degree_ - 1];
    links[degree_ - 1] = to;
    if (std::find(onward, onward + degree_, replaced) == onward + degree_)
        onward[std::min(count_of(to), degree_ - 1)] = replaced;
}

} // namespace kernel
