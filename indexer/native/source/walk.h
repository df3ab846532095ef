// One query's walk over the graph, in steps, so that one thread can take turns between several.
#pragma once

#include "graph.h"
#include "scores.h"

#include <cstdint>
#include <utility>
#include <vector>

namespace kernel {

constexpr int kBeam = 4; // nodes whose links are followed at once

// What is searched for. All queries of a call share it. Equal to Point in hnsw.py, field by field.
struct Point {
    int k;                // rows of a result
    int shortlist;        // candidates that are scored at full width, at least k
    int ef;               // candidates of the walk, at least `shortlist`
    const uint64_t* mask; // one bit a node, whether its row may be found; null for all
    int bridges;          // with a mask: nodes that are crossed for each node whose links are followed
    float min_share;      // with a mask: where fewer of the nodes around may be found, a walk gives up
};

constexpr int kSeeds = 64;   // nodes, spread over the graph, that a walk with a mask begins with
constexpr int kScanned = 64; // codes that a scan scores at once
constexpr int kSampled = 16; // neighbours of its entry whose links say how many may be found there

constexpr int64_t kInterleaved = 3; // walks that a thread takes turns between

inline int64_t padded(int64_t size, int64_t to) { return (size + to - 1) / to * to; }

// A prefix as 8 bits: out_j = value_j * scale_j, rounded with one scale for all.
void quantize(const float* values, const float* scales, int64_t width, int8_t* out);

// Best-first search in a navigable small-world graph (Malkov and Yashunin 2016, algorithms 2 and
// 5): greedy on the upper levels, then with a list of the `ef` best nodes on the base level. There
// the links of several nodes are followed at once, so that memory answers once for all of them (the
// beam search of DiskANN, Subramanya et al. 2019).
//
// With a mask only nodes that may be found are scored and kept; those between them are bridges: their
// links are read, to reach more of the former (ACORN, Patel et al. 2024). A walk gives up, with no
// result, where few nodes around the query may be found: its nearest ones are then far from each
// other, and their links do not lead from one to the next. It also does if it finds fewer than
// `shortlist`.
//
// `gather` and `score` alternate until `score` returns false. Each ends with prefetches of what the
// other reads: in between, the caller lets other walks work, and the memory answers meanwhile.
class Walk {
  public:
    Walk(const Graph& graph, const Level& level);

    void start(const float* query, const Point& point);

    void gather();
    bool score();

    // Scores all of these nodes instead of walking. The point has no mask.
    void scan(const float* query, const Point& point, const int32_t* nodes, int64_t count);

    // The result of a finished walk: the best k rows by (-score, row), padded with -1 and -inf.
    // With `scores` null: the shortlist by (-coarse score, node). Returns the number of rows.
    int finish(int64_t* rows, float* scores);

    // The codes scored and the nodes whose links were followed since the last call.
    int64_t take_compared() { return std::exchange(compared_, 0); }
    int64_t take_followed() { return std::exchange(followed_, 0); }

  private:
    void enter();
    void descend();
    void enter_base();
    void insert();
    uint64_t* place_of(uint64_t entry);
    void enter_masked();
    bool sparse() const;
    void gather_masked();
    void cross();
    bool allowed(int32_t node) const { return point_.mask[node >> 6] >> (node & 63) & 1; }
    int take(int32_t node, uint64_t among); // 1 if it is gathered: not seen, and its bit is in `among`
    void request_codes(int first) const;
    void follow(int32_t node);
    bool follow_best(); // false if all of the pool were followed
    int candidates(); // fills ranked_ with (row, node) of the shortlist, by (-score, node)

    const Graph& graph_;
    const Level& level_;
    Point point_ = {};

    std::vector<int8_t> quantized_;
    std::vector<float> query_;

    int at_level_ = 0;
    int32_t node_ = 0; // the best so far of the upper levels
    int32_t node_score_ = 0;
    int32_t beam_[kBeam] = {}; // whose links are gathered next
    int beam_size_ = 0;
    int bridge_count_ = 0;
    std::vector<int32_t> bridges_; // nodes that may not be found, whose links are read
    bool crossing_ = false; // the bridges were gathered and are to be crossed before scores count
    bool crossed_ = false;  // and were: what they lead to is gathered
    bool gave_up_ = false;

    int64_t compared_ = 0, followed_ = 0;
    int count_ = 0; // nodes gathered
    std::vector<int32_t> gathered_, scores_;
    std::vector<uint64_t> keys_; // of those that the pool takes

    std::vector<uint64_t> seen_; // one bit a node; the words that were set are cleared by start
    std::vector<int32_t> visited_;

    // Sorted, best first. A key holds the score, then the node, so that a lower node wins a tie,
    // then whether its links were followed.
    std::vector<uint64_t> pool_;
    int pool_size_ = 0, next_ = 0;

    std::vector<std::pair<float, int64_t>> ranked_;
    std::vector<int64_t> found_;
};

// Lets `active` walks that were started take turns. A turn has a `walk` and whether it `gathered`;
// `next(turn)` takes the result of a finished walk and starts it again, or is false.
template <class Turn, class Next> void take_turns(Turn* turns, int active, const Next& next) {
    while (active > 0)
        for (int i = 0; i < active;) {
            Turn& turn = turns[i];
            turn.gathered = !turn.gathered;
            if (turn.gathered) {
                turn.walk->gather();
            } else if (!turn.walk->score() && !next(turn)) {
                std::swap(turns[i], turns[--active]);
                continue;
            }
            i++;
        }
}

} // namespace kernel
