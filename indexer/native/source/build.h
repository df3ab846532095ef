// Building an HNSW graph over 8-bit codes, all nodes of a level at once.
#pragma once

#include "graph.h"
#include "scores.h"

#include <cstdint>
#include <utility>
#include <vector>

namespace kernel {

// Links the nodes of a graph (Malkov and Yashunin 2016, algorithm 4): a node to those of its
// nearest that are nearer to it than to a neighbour that it already has, and these back to it. On
// the base level a node with fewer than 24 links gets more, to the nearest of its other candidates.
//
// No walk finds the nearest. Nodes are divided into overlapping groups, each around one of them,
// and within a group every node is compared with every other, from the cache (PiPNN, arXiv
// 2602.21247). So the graph depends on the codes alone, and not on the number of threads.
//
// Similarity is that of a search: a node's code, decoded and rounded to 8 bits as a query would be,
// times the code of another. Two such scores are compared only if the first node is the same, so
// what is constant for a query never counts.
//
// All functions throw std::bad_alloc.
class Builder {
  public:
    // `links` is graph.links, which is written; all of them are -1. `lowest`: (width) what a code
    // of 0 stands for. A node's links are chosen from about `candidates` others. The candidates of
    // a round take at most `bytes`, or 52 bytes a node.
    Builder(const Graph& graph, Link* links, const float* lowest, const Level& level,
            int candidates, int64_t bytes, int threads);

    // Divides the nodes of a level, which rise; the number of rounds, which bound the memory.
    int64_t divide(const int32_t* nodes, int64_t count, int at_level, int threads);

    // Begins a round; the number of its groups.
    int64_t group(int64_t round);

    // Compares the nodes of each of these groups.
    void compare(int64_t first, int64_t last, int threads);

    // Ends a round. The last one links the nodes; all are then reached from the entry.
    void end(int64_t round, int threads);

  private:
    struct Scratch;
    using Entries = std::vector<int32_t>;

    template <class Each> void for_nodes(int threads, const Each& each) const;
    void quantize(int32_t node, std::vector<float>& values);
    void split(Entries entries);
    void add_group(const int32_t* entries, int64_t count);
    void nearest(const int32_t* from, int64_t count, const int32_t* among, int64_t size, int most,
                 Scratch& scratch) const;
    void sort_candidates(int32_t node, Scratch& scratch) const;
    void choose(int32_t node, Scratch& scratch) const;
    void fill(int32_t node, std::vector<int32_t>& others) const;
    void add_leaders(int64_t number, std::vector<int32_t>& nodes) const;
    void link_back(int threads);
    void reach_all();
    int32_t way_to(int32_t node, const std::vector<bool>& reached, Scratch& scratch) const;
    void attach(int32_t from, int32_t to);

    Link* links_of(int32_t node) const {
        return links_ + (graph_.links_of(node, at_level_) - graph_.links);
    }
    int count_of(int32_t node) const;
    const int8_t* query(int32_t node) const { return queries_.data() + node * stride_; }
    int32_t node_of(int32_t entry) const { return nodes_[entry / per_round_]; }

    const Graph graph_;
    Link* const links_;
    const Level& level_;
    const int max_candidates_;
    const int64_t bytes_;
    const int64_t stride_;
    std::vector<float> lowest_;
    std::vector<int8_t> queries_; // (size, stride_) every node as a quantized query

    // Of the level that is linked. Each node is in as many groups as it has memberships. In a
    // round, an entry stands for a membership: the node's number * per_round_, and the next ones.
    int at_level_ = 0, degree_ = 0, memberships_ = 1, per_round_ = 1, found_ = 0;
    std::vector<int32_t> nodes_;
    std::vector<int32_t> leaders_;    // what the groups are around; none if there is one group
    std::vector<uint16_t> leader_of_; // (nodes, memberships_)
    Entries entries_;                 // group by group
    std::vector<int64_t> starts_;     // where each group starts, and the end
    std::vector<int32_t> candidates_; // (entries, found_) the nearest in a group, -1 for none
};

} // namespace kernel
