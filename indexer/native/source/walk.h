// One query's walk over the graph, in steps, so that one thread can take turns between several.
#pragma once

#include "graph.h"
#include "prefix.h"
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

constexpr int kEntries = 256; // nodes, spread over the graph, whose best a walk begins with
constexpr int kSeeds = 64;    // of a walk with a mask: as many that may be found
constexpr int kScanned = 64;  // codes that a scan scores at once
constexpr int kSampled = 16;  // neighbours of its entry whose links say how many may be found there

constexpr int64_t kInterleaved = 3; // walks that a thread takes turns between

// What all walks over a graph share.
struct WalkBase {
    // Throws std::bad_alloc.
    WalkBase(const Graph& graph, const Level& level);

    const Graph graph;
    const Level& level;
    const PrefixRotation rotation;
    std::vector<int32_t> entries; // rising; among them that of the graph, which reaches all nodes
    int64_t entry = 0;            // its place among them
    std::vector<Line> blocks;     // their codes, see pack_codes
};

// Best-first search in a navigable small-world graph (Malkov and Yashunin 2016, algorithm 5) with a
// list of the `ef` best nodes. It begins with the best of nodes that are spread over the graph:
// their codes are scored faster than a walk descends through the upper levels. The links of several
// nodes are followed at once, so that memory answers once for all of them (the beam search of
// DiskANN, Subramanya et al. 2019).
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
    explicit Walk(const WalkBase& base);

    // False if the query is zero or not finite: there is then nothing to walk for.
    bool start(const float* query, const Point& point);

    void gather();
    bool score();

    // Scores all of these nodes instead: `score` is then false. The point has no mask. False as `start`.
    bool scan(const float* query, const Point& point, const int32_t* nodes, int64_t count);

    // The result of a finished walk: the best k rows by (-score, row), padded with -1 and -inf.
    // With `scores` null: the shortlist by (-coarse score, node). Returns the number of rows.
    int finish(int64_t* rows, float* scores);

    // For tests: the codes scored and the nodes whose links were followed since the last call.
    int64_t take_compared() { return std::exchange(compared_, 0); }
    int64_t take_followed() { return std::exchange(followed_, 0); }

  private:
    bool prepare(const float* query, const Point& point);
    void enter();
    void add_seeds();
    void score_gathered();
    void insert(int count); // the first of keys_
    bool sparse() const;
    void gather_masked();
    void cross();
    bool allowed(int32_t node) const { return point_.mask[node >> 6] >> (node & 63) & 1; }
    int take(int32_t node, uint64_t among); // 1 if it is gathered: not seen, and its bit is in `among`
    void visit(const std::vector<int32_t>& nodes, int first, int last);
    void request_codes(int first) const;
    const Link* links_of(int32_t node) const { return graph_.links + graph_.offsets[node]; }
    void request_links(int32_t node) const;
    bool follow_best(); // false if all of the pool were followed
    int candidates();   // fills found_ with the rows of the shortlist, by (-score, node)
    int64_t* pool() { return reinterpret_cast<int64_t*>(pool_.data()); }

    const WalkBase& base_;
    const Graph& graph_;
    const Level& level_;
    const int degree_; // links of a node on the base level
    Point point_ = {};

    std::vector<float> query_, prefix_;
    std::vector<int8_t> quantized_;

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
    std::vector<int64_t> keys_; // of those that the pool takes

    std::vector<uint64_t> seen_; // one bit a node; the words that were set are cleared by start
    std::vector<int32_t> visited_;

    // Keys rise to the best, in the last of room_ places; the first that count are the ef before the
    // end. A key holds the score, then the node, so that a lower node wins a tie, then whether its
    // links were followed.
    std::vector<Line> pool_;
    int room_ = 0, pool_size_ = 0, next_ = 0; // all behind next_ were followed

    std::vector<std::pair<float, int64_t>> ranked_;
    std::vector<int64_t> found_;
};

} // namespace kernel
