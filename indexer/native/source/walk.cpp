#include "walk.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace kernel {
namespace {

constexpr uint64_t kFollowed = 1;

uint64_t key(int32_t score, int32_t node) {
    return uint64_t(uint32_t(score) ^ 0x80000000u) << 32 | uint32_t(~node) << 1;
}

int32_t node_of(uint64_t key) { return int32_t(~uint32_t(key) >> 1); }

void prefetch(const void* from, int64_t bytes) {
    const char* at = static_cast<const char*>(from);
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(at + i);
    __builtin_prefetch(at + bytes - 1);
}

} // namespace

// A score is the sum of w_j * code_j with w_j = value_j * scale_j.
void quantize(const float* values, const float* scales, int64_t width, int8_t* out) {
    float largest = 0;
    for (int64_t j = 0; j < width; j++)
        largest = std::max(largest, std::fabs(values[j] * scales[j]));
    const float step = largest > 0 ? 127 / largest : 0;
    for (int64_t j = 0; j < width; j++) {
        const float value = values[j] * scales[j] * step;
        out[j] = int8_t(std::max(-127.0f, std::min(127.0f, std::nearbyint(value))));
    }
}

Walk::Walk(const Graph& graph, const Level& level)
    : graph_(graph), level_(level), quantized_(padded(graph.width, kCodeBlock)),
      query_(padded(graph.dim, kLanes)), seen_((graph.size + 63) / 64) {
    int widest = std::max(kSeeds, kScanned);
    for (int i = 0; i < graph.level_count; i++) widest = std::max(widest, kBeam * graph.degree(i));
    gathered_.resize(widest);
    scores_.resize(widest);
    keys_.resize(widest);
}

void Walk::start(const float* query, const Point& point) {
    point_ = point;
    std::copy(query, query + graph_.dim, query_.begin());
    quantize(query, graph_.scales, graph_.width, quantized_.data());
    if (point_.mask) {
        const int degree = graph_.degree(0);
        point_.bridges = std::min(point_.bridges, degree);
        const size_t widest = kBeam * degree * (1 + point_.bridges);
        if (gathered_.size() < widest) {
            gathered_.resize(widest);
            scores_.resize(widest);
            keys_.resize(widest);
        }
        bridges_.resize(kBeam * point_.bridges + 1);
    }
    enter();
}

void Walk::scan(const float* query, const Point& point, const int32_t* nodes, int64_t count) {
    constexpr int64_t kAhead = 32; // codes that are on their way while others are scored
    point_ = point;
    std::copy(query, query + graph_.dim, query_.begin());
    quantize(query, graph_.scales, graph_.width, quantized_.data());
    pool_.resize(point_.ef);
    pool_size_ = 0;
    for (int64_t first = 0; first < count; first += kScanned) {
        count_ = int(std::min<int64_t>(kScanned, count - first));
        std::copy(nodes + first, nodes + first + count_, gathered_.begin());
        const int64_t ahead = std::min(first + kScanned + kAhead, count);
        for (int64_t i = first ? first + kAhead : 0; i < ahead; i++)
            prefetch(graph_.code(nodes[i]), graph_.width);
        level_.codes(graph_.codes, graph_.width, quantized_.data(), gathered_.data(), count_,
                     scores_.data());
        insert();
    }
    compared_ += count;
}

void Walk::enter() {
    for (int32_t node : visited_) seen_[node >> 6] = 0;
    visited_.clear();
    pool_.resize(point_.ef);
    pool_size_ = 0;
    node_ = int32_t(graph_.entry);
    level_.codes(graph_.codes, graph_.width, quantized_.data(), &node_, 1, &node_score_);
    at_level_ = int(graph_.entry_level);
    crossing_ = crossed_ = gave_up_ = false;
    if (at_level_ == 0) enter_base();
    beam_size_ = 0;
    follow(node_);
}

void Walk::follow(int32_t node) {
    beam_[beam_size_++] = node;
    prefetch(graph_.links_of(node, at_level_), 4 * graph_.degree(at_level_));
}

bool Walk::follow_best() {
    beam_size_ = 0;
    for (; next_ < pool_size_ && beam_size_ < kBeam; next_++) {
        if (pool_[next_] & kFollowed) continue;
        pool_[next_] |= kFollowed;
        follow(node_of(pool_[next_]));
    }
    return beam_size_ > 0;
}

void Walk::gather() {
    if (crossed_) {
        crossed_ = false;
        return;
    }
    if (point_.mask && at_level_ == 0) return gather_masked();
    const int degree = graph_.degree(at_level_);
    count_ = 0;
    if (at_level_ > 0) {
        const Link* links = graph_.links_of(node_, at_level_);
        for (; count_ < degree; count_++) {
            const int32_t node = links[count_];
            if (node < 0) break;
            gathered_[count_] = node;
        }
    } else {
        for (int i = 0; i < beam_size_; i++) {
            const Link* links = graph_.links_of(beam_[i], at_level_);
            for (int j = 0; j < degree; j++) {
                const int32_t node = links[j];
                if (node < 0) break;
                uint64_t& word = seen_[node >> 6];
                const uint64_t bit = uint64_t(1) << (node & 63);
                gathered_[count_] = node;
                count_ += !(word & bit);
                word |= bit;
            }
        }
        visited_.insert(visited_.end(), gathered_.begin(), gathered_.begin() + count_);
    }
    request_codes(0);
}

void Walk::request_codes(int first) const {
    for (int j = first; j < count_; j++) prefetch(graph_.code(gathered_[j]), graph_.width);
}

// The loops below have no branch on what may be found: it cannot be predicted.
int Walk::take(int32_t node, uint64_t among) {
    uint64_t& seen = seen_[node >> 6];
    const uint64_t taken = uint64_t(1) << (node & 63) & among & ~seen;
    seen |= taken;
    return taken != 0;
}

// The neighbours that may be found; of the others, the first few of each node are bridges.
void Walk::gather_masked() {
    const int degree = graph_.degree(at_level_);
    int bridges = 0;
    count_ = 0;
    for (int i = 0; i < beam_size_; i++) {
        const Link* links = graph_.links_of(beam_[i], at_level_);
        const int limit = bridges + point_.bridges;
        for (int j = 0; j < degree; j++) {
            const int32_t node = links[j];
            if (node < 0) break;
            const uint64_t mask = point_.mask[node >> 6];
            gathered_[count_] = node;
            count_ += take(node, mask);
            bridges_[bridges] = node;
            bridges += take(node, bridges < limit ? ~mask : 0);
        }
    }
    visited_.insert(visited_.end(), gathered_.begin(), gathered_.begin() + count_);
    visited_.insert(visited_.end(), bridges_.begin(), bridges_.begin() + bridges);
    for (int i = 0; i < bridges; i++) prefetch(graph_.links_of(bridges_[i], at_level_), 4 * degree);
    request_codes(0);
    bridge_count_ = bridges;
    crossing_ = bridges > 0;
}

// The neighbours of the bridges that may be found.
void Walk::cross() {
    const int degree = graph_.degree(at_level_), before = count_;
    for (int i = 0; i < bridge_count_; i++) {
        const Link* links = graph_.links_of(bridges_[i], at_level_);
        int end = count_; // most may not be found: these are sorted out without a write
        for (int j = 0; j < degree; j++) {
            const int32_t node = links[j];
            if (node < 0) break;
            gathered_[end] = node;
            end += allowed(node);
        }
        for (int j = count_; j < end; j++) {
            const int32_t node = gathered_[j];
            gathered_[count_] = node;
            count_ += take(node, ~uint64_t(0));
        }
    }
    visited_.insert(visited_.end(), gathered_.begin() + before, gathered_.begin() + count_);
    request_codes(before);
    crossing_ = false;
    crossed_ = true;
}

bool Walk::score() {
    if (crossing_) {
        cross();
        return true;
    }
    compared_ += count_;
    followed_ += beam_size_;
    level_.codes(graph_.codes, graph_.width, quantized_.data(), gathered_.data(), count_,
                 scores_.data());
    if (at_level_ > 0) {
        descend();
        beam_size_ = 0;
        follow(node_);
        return !gave_up_;
    }
    insert();
    return follow_best();
}

// Moves to the best neighbour, or down where none is better.
void Walk::descend() {
    int32_t best = -1;
    for (int j = 0; j < count_; j++)
        if (scores_[j] > node_score_) {
            node_score_ = scores_[j];
            best = gathered_[j];
        }
    if (best >= 0) {
        node_ = best;
    } else if (--at_level_ == 0) {
        enter_base();
    }
}

void Walk::enter_base() {
    seen_[node_ >> 6] |= uint64_t(1) << (node_ & 63);
    visited_.push_back(node_);
    next_ = 0;
    if (point_.mask) return enter_masked();
    pool_[0] = key(node_score_, node_) | kFollowed;
    pool_size_ = 1;
}

// Begins with the entry, whose links are followed in any case, and with the first node that may be
// found of each of kSeeds parts of the graph.
void Walk::enter_masked() {
    if (allowed(node_)) {
        pool_[0] = key(node_score_, node_) | kFollowed;
        pool_size_ = 1;
    }
    gave_up_ = sparse();
    if (gave_up_) return;
    count_ = 0;
    for (int64_t i = 0; i < kSeeds; i++) {
        int64_t node = graph_.size * i / kSeeds;
        const int64_t end = graph_.size * (i + 1) / kSeeds;
        while (node < end && !allowed(int32_t(node))) node++;
        if (node == end) continue;
        gathered_[count_] = int32_t(node);
        count_ += take(int32_t(node), ~uint64_t(0));
    }
    visited_.insert(visited_.end(), gathered_.begin(), gathered_.begin() + count_);
    request_codes(0);
    compared_ += count_;
    level_.codes(graph_.codes, graph_.width, quantized_.data(), gathered_.data(), count_,
                 scores_.data());
    insert();
}

// Whether few of the nodes around the entry may be found.
bool Walk::sparse() const {
    const int degree = graph_.degree(at_level_), sampled = std::min(kSampled, degree);
    const Link* links = graph_.links_of(node_, at_level_);
    for (int i = 0; i < sampled && links[i] >= 0; i++)
        prefetch(graph_.links_of(links[i], at_level_), 4 * degree);
    int all = 0, found = 0;
    for (int i = 0; i < sampled && links[i] >= 0; i++) {
        const Link* of = graph_.links_of(links[i], at_level_);
        for (int j = 0; j < degree && of[j] >= 0; j++, all++) found += allowed(of[j]);
    }
    return found < point_.min_share * float(all);
}

void Walk::insert() {
    // Most nodes are worse than all of a full pool: they are left out without a branch.
    const uint64_t worst = pool_size_ == point_.ef ? pool_[pool_size_ - 1] : 0;
    int better = 0;
    for (int j = 0; j < count_; j++) {
        keys_[better] = key(scores_[j], gathered_[j]);
        better += keys_[better] > worst;
    }
    for (int j = 0; j < better; j++) {
        const uint64_t entry = keys_[j];
        if (pool_size_ == point_.ef && entry < pool_[pool_size_ - 1]) continue;
        uint64_t* place = place_of(entry);
        uint64_t* end = pool_.data() + pool_size_;
        if (pool_size_ < point_.ef) {
            pool_size_++;
        } else {
            end--;
        }
        std::memmove(place + 1, place, (end - place) * sizeof entry);
        *place = entry;
        next_ = std::min(next_, int(place - pool_.data()));
        __builtin_prefetch(graph_.offsets + node_of(entry)); // its links may be followed soon
    }
}

// Where the pool's order wants a key: a binary search without branches, for none is predictable.
uint64_t* Walk::place_of(uint64_t entry) {
    uint64_t* place = pool_.data();
    for (int left = pool_size_; left > 0;) {
        const int half = left / 2;
        const bool after = place[half] > entry;
        place = after ? place + half + 1 : place;
        left = after ? left - half - 1 : half;
    }
    return place;
}

int Walk::candidates() {
    int count = std::min(pool_size_, point_.shortlist);
    if (point_.mask && (gave_up_ || count < point_.shortlist)) count = 0;
    found_.resize(count);
    for (int j = 0; j < count; j++) __builtin_prefetch(graph_.ids + node_of(pool_[j]));
    for (int j = 0; j < count; j++) found_[j] = graph_.ids[node_of(pool_[j])];
    return count;
}

int Walk::finish(int64_t* rows, float* scores) {
    const int count = candidates();
    const int kept = std::min(count, point_.k);
    std::fill(rows + kept, rows + point_.k, -1);
    if (!scores) {
        std::copy(found_.begin(), found_.begin() + kept, rows);
        return kept;
    }
    const ScoreRow dot = graph_.half ? level_.half : level_.single;
    constexpr int kAhead = 6; // rows
    for (int j = 0; j < std::min(kAhead, count); j++)
        prefetch(graph_.row(found_[j]), graph_.row_bytes());
    ranked_.resize(count);
    for (int j = 0; j < count; j++) {
        if (j + kAhead < count) prefetch(graph_.row(found_[j + kAhead]), graph_.row_bytes());
        ranked_[j] = {-dot(graph_.row(found_[j]), query_.data(), graph_.dim), found_[j]};
    }
    std::partial_sort(ranked_.begin(), ranked_.begin() + kept, ranked_.end());
    for (int j = 0; j < kept; j++) {
        scores[j] = -ranked_[j].first;
        rows[j] = ranked_[j].second;
    }
    std::fill(scores + kept, scores + point_.k, -std::numeric_limits<float>::infinity());
    return kept;
}

} // namespace kernel
