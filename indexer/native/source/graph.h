// The arrays of an HNSW graph with 8-bit codes as faiss lays them out, and the full-width rows.
// Nothing but the matrix is copied: the caller keeps the other arrays alive.
#pragma once

#include <cstdint>
#include <string>

namespace kernel {

// A link in a mapped file may start at any byte.
typedef int32_t Link __attribute__((aligned(1)));

// Equal to GraphArrays in hnsw.py, field by field.
struct Graph {
    int64_t size;          // nodes
    int64_t width;         // dimensions of a prefix, and bytes of a code
    int64_t rows;          // rows of the file
    int64_t dim;           // full width
    int64_t half;          // 1: rows of float16, 0: float32
    int64_t link_count;    // entries of `links`
    int64_t level_count;   // entries of `level_starts`, less one
    int64_t entry;         // node where a search starts
    int64_t entry_level;   // its highest level
    const uint8_t* codes;  // (size, width)
    const Link* links;     // nodes, -1 where a list is not full
    const uint64_t* offsets;      // (size + 1) where the links of a node start
    const int32_t* level_starts;  // (level_count + 1) where those of a level start, from there
    const int32_t* node_levels;   // (size) number of levels of a node
    const int64_t* ids;           // (size) row number of a node
    const float* scales;          // (width) value of one step of a code
    const uint8_t* full;          // (rows, dim), at any byte address
    const float* matrix;          // (width, dim) rotates a query to its prefix; null: the first dimensions

    const Link* links_of(int32_t node, int level) const {
        return links + offsets[node] + level_starts[level];
    }
    int degree(int level) const { return level_starts[level + 1] - level_starts[level]; }
    const uint8_t* code(int32_t node) const { return codes + node * width; }
    int64_t row_bytes() const { return dim * (half ? 2 : 4); }
    const uint8_t* row(int64_t number) const { return full + number * row_bytes(); }
};

constexpr int kMaxDegree = 4096; // links of a node on one level

// Every index that a search will follow is checked here, once. Returns what is wrong, or nothing.
std::string defect(const Graph& graph);

} // namespace kernel
