#include "walk.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
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
    int widest = 1;
    for (int i = 0; i < graph.level_count; i++) widest = std::max(widest, kBeam * graph.degree(i));
    gathered_.resize(widest);
    scores_.resize(widest);
    keys_.resize(widest);
}

void Walk::start(const float* query, const Point& point) {
    point_ = point;
    last_level_ = 0;
    std::copy(query, query + graph_.dim, query_.begin());
    quantize(query, graph_.scales, graph_.width, quantized_.data());
    enter();
}

void Walk::start(const int8_t* quantized, int ef, int level) {
    point_ = {1, 1, ef, nullptr};
    last_level_ = level;
    std::copy(quantized, quantized + graph_.width, quantized_.begin());
    enter();
}

void Walk::enter() {
    for (int32_t node : visited_) seen_[node >> 6] = 0;
    visited_.clear();
    collected_.clear();
    pool_.resize(point_.ef);
    pool_size_ = 0;
    node_ = int32_t(graph_.entry);
    level_.codes(graph_.codes, graph_.width, quantized_.data(), &node_, 1, &node_score_);
    at_level_ = int(graph_.entry_level);
    if (at_level_ == last_level_) enter_last();
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
    const int degree = graph_.degree(at_level_);
    count_ = 0;
    // Each link is read once: while a graph is built, another thread may be writing it.
    if (at_level_ > last_level_) {
        const volatile Link* links = graph_.links_of(node_, at_level_);
        for (; count_ < degree; count_++) {
            const int32_t node = links[count_];
            if (node < 0) break;
            gathered_[count_] = node;
        }
    } else {
        for (int i = 0; i < beam_size_; i++) {
            const volatile Link* links = graph_.links_of(beam_[i], at_level_);
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
    for (int j = 0; j < count_; j++) prefetch(graph_.code(gathered_[j]), graph_.width);
    if (point_.mask && at_level_ == last_level_)
        for (int j = 0; j < count_; j++) __builtin_prefetch(graph_.ids + gathered_[j]);
}

bool Walk::score() {
    compared_ += count_;
    followed_ += beam_size_;
    level_.codes(graph_.codes, graph_.width, quantized_.data(), gathered_.data(), count_,
                 scores_.data());
    if (at_level_ > last_level_) {
        descend();
        beam_size_ = 0;
        follow(node_);
        return true;
    }
    if (point_.mask) collect();
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
    } else if (--at_level_ == last_level_) {
        enter_last();
    }
}

void Walk::enter_last() {
    seen_[node_ >> 6] |= uint64_t(1) << (node_ & 63);
    visited_.push_back(node_);
    pool_[0] = key(node_score_, node_) | kFollowed;
    pool_size_ = 1;
    next_ = 0;
    if (point_.mask) {
        gathered_[0] = node_;
        scores_[0] = node_score_;
        count_ = 1;
        collect();
    }
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

void Walk::collect() {
    for (int j = 0; j < count_; j++) {
        const uint64_t entry = key(scores_[j], gathered_[j]);
        const bool full = int(collected_.size()) == point_.shortlist;
        if ((full && entry < collected_.front()) || !point_.mask[graph_.ids[gathered_[j]]])
            continue;
        if (full) {
            std::pop_heap(collected_.begin(), collected_.end(), std::greater<uint64_t>());
            collected_.pop_back();
        }
        collected_.push_back(entry);
        std::push_heap(collected_.begin(), collected_.end(), std::greater<uint64_t>());
    }
}

int Walk::candidates() {
    const uint64_t* best = pool_.data();
    int count = std::min(pool_size_, point_.shortlist);
    if (point_.mask) {
        std::sort(collected_.begin(), collected_.end(), std::greater<uint64_t>());
        best = collected_.data();
        count = int(collected_.size());
    }
    found_.resize(count);
    for (int j = 0; j < count; j++) __builtin_prefetch(graph_.ids + node_of(best[j]));
    for (int j = 0; j < count; j++) found_[j] = graph_.ids[node_of(best[j])];
    return count;
}

int Walk::best(int32_t* nodes) const {
    for (int i = 0; i < pool_size_; i++) nodes[i] = node_of(pool_[i]);
    return pool_size_;
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
