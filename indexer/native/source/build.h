// Building an HNSW graph over 8-bit codes.
#pragma once

#include "graph.h"
#include "scores.h"
#include "walk.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace kernel {

// Adds nodes to a graph (Malkov and Yashunin 2016, algorithms 1 and 4). A node is linked to those
// of its nearest that are nearer to it than to a neighbour that it already has.
//
// Similarity is that of a search: a node's code, decoded and rounded to 8 bits as a query would be,
// times the code of another. Two such scores are compared only if the first node is the same, so
// what is constant for a query never counts.
class Builder {
  public:
    // `links` is graph.links, which is written; all of them are -1. The entry is the first node.
    // `lowest`: (width) what a code of 0 stands for.
    Builder(const Graph& graph, Link* links, const float* lowest, const Level& level, int ef);

    // Adds nodes, each once, those with more levels first. Throws std::bad_alloc.
    void insert(const int32_t* nodes, int64_t count, int threads);

  private:
    // What a thread needs, kept between nodes.
    struct Scratch {
        std::vector<int32_t> candidates, kept, neighbours, scores;
        std::vector<std::pair<int32_t, int32_t>> sorted;
        std::vector<float> values; // a decoded node
    };
    class Lock;

    void run(const int32_t* nodes, int64_t count, std::atomic<int64_t>& taken);
    void quantize(int32_t node, std::vector<float>& values);
    void link(int32_t node, int level, int found, Scratch& scratch);
    void link_back(int32_t from, int32_t to, int level, Scratch& scratch);
    void choose(int32_t node, const int32_t* candidates, int count, int most, Scratch& scratch);
    void write(Link* links, int degree, const Scratch& scratch);

    Link* links_of(int32_t node, int level) const {
        return links_ + (graph_.links_of(node, level) - graph_.links);
    }
    const int8_t* query(int32_t node) const { return queries_.data() + node * stride_; }

    const Graph graph_;
    Link* const links_;
    const Level& level_;
    const int ef_;
    const int64_t stride_;
    std::vector<float> lowest_;
    std::vector<int8_t> queries_; // (size, stride_) every node as a quantized query
    std::unique_ptr<std::atomic<uint8_t>[]> locks_;
};

} // namespace kernel
