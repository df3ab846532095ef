#include "walk.h"

#include <algorithm>
#include <limits>

namespace kernel {
namespace {

constexpr int64_t kFollowed = 1;
constexpr int64_t kNone = std::numeric_limits<int64_t>::min() | kFollowed; // a free place of a pool

int64_t key(int32_t score, int32_t node) {
    return int64_t(uint64_t(uint32_t(score)) << 32 | uint32_t(~node) << 1);
}

int32_t node_of(int64_t key) { return int32_t(~uint32_t(key) >> 1); }

template <int locality = 3> void prefetch(const void* from, int64_t bytes) {
    const char* at = static_cast<const char*>(from);
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(at + i, 0, locality);
    __builtin_prefetch(at + bytes - 1, 0, locality);
}

} // namespace

WalkBase::WalkBase(const Graph& graph, const Level& level)
    : graph(graph), level(level), rotation(graph) {
    const int64_t count = std::min<int64_t>(kEntries, graph.size);
    for (int64_t i = 0; i < count; i++) entries.push_back(int32_t(graph.size * i / count));
    auto place = std::lower_bound(entries.begin(), entries.end(), graph.entry);
    if (place == entries.end() || *place != graph.entry)
        place = entries.insert(place, int32_t(graph.entry));
    entry = place - entries.begin();
    const int64_t lines = padded(graph.width, kCodeBlock), all = entries.size();
    blocks.resize(padded(all, kBlockCodes) / kBlockCodes * lines);
    for (int64_t first = 0; first < all; first += kBlockCodes)
        pack_codes(graph.codes, graph.width, entries.data() + first,
                   int(std::min<int64_t>(kBlockCodes, all - first)),
                   blocks[first / kBlockCodes * lines].bytes);
}

Walk::Walk(const WalkBase& base)
    : base_(base), graph_(base.graph), level_(base.level), degree_(graph_.degree(0)),
      query_(padded(graph_.dim, kLanes)), prefix_(graph_.width),
      quantized_(padded(graph_.width, kCodeBlock)), seen_((graph_.size + 63) / 64) {}

bool Walk::prepare(const float* query, const Point& point) {
    point_ = point;
    point_.bridges = point_.mask ? std::min(point_.bridges, degree_) : 0;
    if (!scale_to_one(query, graph_.dim, query_.data())) return false;
    base_.rotation.rotate(query_.data(), level_, prefix_.data());
    quantize(prefix_.data(), graph_.scales, graph_.width, quantized_.data());
    const int widest = std::max({kSeeds, kScanned, kBeam * degree_ * (1 + point_.bridges) + 1});
    gathered_.resize(widest);
    scores_.resize(widest);
    keys_.resize(widest);
    room_ = int(padded(point_.ef, kPoolBlock));
    pool_.resize(room_ / kPoolBlock + 1);
    std::fill_n(pool(), room_, kNone);
    pool()[room_] = std::numeric_limits<int64_t>::max();
    pool_size_ = 0;
    next_ = room_ - 1;
    return true;
}

bool Walk::start(const float* query, const Point& point) {
    if (!prepare(query, point)) return false;
    bridges_.resize(kBeam * point_.bridges + 1);
    for (int32_t node : visited_) seen_[node >> 6] = 0;
    visited_.clear();
    crossing_ = crossed_ = gave_up_ = false;
    enter();
    return true;
}

bool Walk::scan(const float* query, const Point& point, const int32_t* nodes, int64_t count) {
    constexpr int64_t kCodesAhead = 32; // that are on their way while others are scored
    if (!prepare(query, point)) return false;
    for (int64_t first = 0; first < count; first += kScanned) {
        count_ = int(std::min<int64_t>(kScanned, count - first));
        std::copy(nodes + first, nodes + first + count_, gathered_.begin());
        const int64_t ahead = std::min(first + kScanned + kCodesAhead, count);
        for (int64_t i = first ? first + kCodesAhead : 0; i < ahead; i++)
            prefetch(graph_.code(nodes[i]), graph_.width);
        score_gathered();
    }
    count_ = beam_size_ = 0;
    next_ = -1;
    return true;
}

// Begins with the best of the entries, whose links are followed in any case.
void Walk::enter() {
    int64_t best[kBeam];
    std::fill(best, best + kBeam, kNone);
    const std::vector<int32_t>& entries = base_.entries;
    const int64_t lines = padded(graph_.width, kCodeBlock), count = entries.size();
    int32_t scores[kBlockCodes], entry_score = 0;
    for (int64_t first = 0; first < count; first += kBlockCodes) {
        const int64_t packed = std::min<int64_t>(kBlockCodes, count - first);
        uint64_t better = level_.block(base_.blocks[first / kBlockCodes * lines].bytes,
                                       graph_.width, quantized_.data(),
                                       int32_t(best[kBeam - 1] >> 32), scores);
        if (base_.entry / kBlockCodes * kBlockCodes == first)
            entry_score = scores[base_.entry - first];
        for (better &= ~uint64_t(0) >> (kBlockCodes - packed); better; better &= better - 1) {
            const int i = __builtin_ctzll(better);
            int64_t other = key(scores[i], entries[first + i]);
            for (int64_t& place : best)
                if (other > place) std::swap(other, place);
        }
    }
    compared_ += count;
    beam_size_ = 0;
    int kept = 0;
    for (int64_t each : best) {
        if (each == kNone) break;
        const int32_t node = node_of(each);
        request_links(node);
        beam_[beam_size_++] = node;
        take(node, ~uint64_t(0));
        keys_[kept] = each | kFollowed;
        kept += !point_.mask || allowed(node);
    }
    visited_.assign(beam_, beam_ + beam_size_);
    const int32_t entry = entries[base_.entry];
    if (!point_.mask && take(entry, ~uint64_t(0))) {
        visited_.push_back(entry);
        keys_[kept++] = key(entry_score, entry);
    }
    insert(kept);
    if (!point_.mask) return;
    gave_up_ = sparse();
    if (gave_up_)
        beam_size_ = 0;
    else
        add_seeds();
}

// The links of a node on the base level come first.
void Walk::request_links(int32_t node) const { prefetch(links_of(node), 4 * degree_); }

bool Walk::follow_best() {
    beam_size_ = 0;
    const int64_t* keys = pool();
    const int first = room_ - point_.ef;
    for (; next_ >= first && beam_size_ < kBeam; next_--) {
        beam_[beam_size_] = node_of(keys[next_]);
        beam_size_ += !(keys[next_] & kFollowed);
        pool()[next_] |= kFollowed;
    }
    for (int i = 0; i < beam_size_; i++) request_links(beam_[i]);
    return beam_size_ > 0;
}

void Walk::gather() {
    if (crossed_) {
        crossed_ = false;
        return;
    }
    if (point_.mask) return gather_masked();
    count_ = 0;
    for (int i = 0; i < beam_size_; i++) {
        const Link* links = links_of(beam_[i]);
        for (int j = 0; j < degree_; j++) {
            const int32_t node = links[j];
            if (node < 0) break;
            gathered_[count_] = node;
            count_ += take(node, ~uint64_t(0));
        }
    }
    visit(gathered_, 0, count_);
    request_codes(0);
}

void Walk::visit(const std::vector<int32_t>& nodes, int first, int last) {
    visited_.insert(visited_.end(), nodes.begin() + first, nodes.begin() + last);
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
    int bridges = 0;
    count_ = 0;
    for (int i = 0; i < beam_size_; i++) {
        const Link* links = links_of(beam_[i]);
        const int limit = bridges + point_.bridges;
        for (int j = 0; j < degree_; j++) {
            const int32_t node = links[j];
            if (node < 0) break;
            const uint64_t mask = point_.mask[node >> 6];
            gathered_[count_] = node;
            count_ += take(node, mask);
            bridges_[bridges] = node;
            bridges += take(node, bridges < limit ? ~mask : 0);
        }
    }
    visit(gathered_, 0, count_);
    visit(bridges_, 0, bridges);
    for (int i = 0; i < bridges; i++) request_links(bridges_[i]);
    request_codes(0);
    bridge_count_ = bridges;
    crossing_ = bridges > 0;
}

// The neighbours of the bridges that may be found.
void Walk::cross() {
    const int before = count_;
    for (int i = 0; i < bridge_count_; i++) {
        const Link* links = links_of(bridges_[i]);
        int end = count_; // most may not be found: these are sorted out without a write
        for (int j = 0; j < degree_; j++) {
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
    visit(gathered_, before, count_);
    request_codes(before);
    crossing_ = false;
    crossed_ = true;
}

bool Walk::score() {
    if (crossing_) {
        cross();
        return true;
    }
    followed_ += beam_size_;
    score_gathered();
    return follow_best();
}

// Adds the first node that may be found of each of kSeeds parts of the graph.
void Walk::add_seeds() {
    count_ = 0;
    for (int64_t i = 0; i < kSeeds; i++) {
        int64_t node = graph_.size * i / kSeeds;
        const int64_t end = graph_.size * (i + 1) / kSeeds;
        while (node < end && !allowed(int32_t(node))) node++;
        if (node == end) continue;
        gathered_[count_] = int32_t(node);
        count_ += take(int32_t(node), ~uint64_t(0));
    }
    visit(gathered_, 0, count_);
    request_codes(0);
    score_gathered();
}

// Whether few of the nodes around the best entry may be found.
bool Walk::sparse() const {
    const int sampled = std::min(kSampled, degree_);
    const Link* links = links_of(beam_[0]);
    for (int i = 0; i < sampled && links[i] >= 0; i++) request_links(links[i]);
    int all = 0, kept = 0;
    for (int i = 0; i < sampled && links[i] >= 0; i++) {
        const Link* next = links_of(links[i]);
        for (int j = 0; j < degree_ && next[j] >= 0; j++, all++) kept += allowed(next[j]);
    }
    return kept < point_.min_share * float(all);
}

void Walk::score_gathered() {
    compared_ += count_;
    level_.codes(graph_.codes, graph_.width, quantized_.data(), gathered_.data(), count_,
                 scores_.data());
    // Most nodes are worse than all of a full pool: they are left out without a branch.
    const int64_t worst = pool()[room_ - point_.ef];
    int better = 0;
    for (int j = 0; j < count_; j++) {
        keys_[better] = key(scores_[j], gathered_[j]);
        better += keys_[better] > worst;
    }
    insert(better);
}

void Walk::insert(int count) {
    if (count == 0) return;
    pool_size_ = std::min(point_.ef, pool_size_ + count);
    const int64_t best = *std::max_element(keys_.begin(), keys_.begin() + count);
    while (pool()[next_ + 1] < best) next_++;
    level_.insert(pool(), room_, keys_.data(), count);
}

int Walk::candidates() {
    int count = std::min(pool_size_, point_.shortlist);
    if (point_.mask && (gave_up_ || count < point_.shortlist)) count = 0;
    found_.resize(count);
    const int64_t* best = pool() + room_ - 1;
    for (int j = 0; j < count; j++) __builtin_prefetch(graph_.ids + node_of(best[-j]));
    for (int j = 0; j < count; j++) found_[j] = graph_.ids[node_of(best[-j])];
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
    constexpr int kRowsAhead = 6;
    for (int j = 0; j < std::min(kRowsAhead, count); j++)
        prefetch(graph_.row(found_[j]), graph_.row_bytes());
    for (int j = kRowsAhead; j < count; j++)
        prefetch<2>(graph_.row(found_[j]), graph_.row_bytes());
    ranked_.resize(count);
    for (int j = 0; j < count; j++) {
        if (j + kRowsAhead < count)
            prefetch(graph_.row(found_[j + kRowsAhead]), graph_.row_bytes());
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
