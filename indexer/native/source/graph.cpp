#include "graph.h"

#include <cmath>
#include <vector>

namespace kernel {
namespace {

std::string node(const char* what, int64_t number) {
    return std::string(what) + " of node " + std::to_string(number);
}

} // namespace

std::string defect(const Graph& graph) {
    const int64_t n = graph.size;
    // Scores are 32-bit sums of products of at most 255 * 127; nodes share a word with a flag.
    if (n < 1 || n > (int64_t(1) << 30)) return "the number of nodes is out of range";
    if (graph.width < 1 || graph.width > 65536) return "the width is out of range";
    if (graph.matrix) {
        if (graph.dim > 65536) return "the full width is out of range";
        for (int64_t i = 0; i < graph.width * graph.dim; i++)
            if (!std::isfinite(graph.matrix[i])) return "the rotation holds NaN or infinity";
    }
    if (graph.level_count < 1 || graph.level_starts[0] != 0) return "the level sizes are invalid";
    for (int64_t level = 0; level < graph.level_count; level++) {
        const int64_t degree = int64_t(graph.level_starts[level + 1]) - graph.level_starts[level];
        if (degree < 0 || degree > kMaxDegree) return "the level sizes are invalid";
    }
    if (graph.offsets[0] != 0) return node("the offset", 0) + " is not 0";
    for (int64_t i = 0; i < n; i++) {
        const int64_t top = graph.node_levels[i];
        if (top < 1 || top > graph.level_count) return node("the level", i) + " is out of range";
        if (graph.offsets[i + 1] - graph.offsets[i] != uint64_t(graph.level_starts[top]))
            return node("the offset after that", i) + " does not fit its level";
    }
    if (graph.offsets[n] != uint64_t(graph.link_count)) return "the number of links is wrong";
    if (graph.entry < 0 || graph.entry >= n) return "the entry point is no node";
    if (graph.entry_level < 0 || graph.entry_level >= graph.node_levels[graph.entry])
        return "the entry point is not on the highest level";
    uint32_t beyond = 0;
    for (int64_t i = 0; i < graph.link_count; i++) // without a branch: the compiler vectorises it
        beyond |= uint32_t(graph.links[i]) + 1 > uint32_t(n);
    if (beyond) return "a link leads to no node";
    for (int64_t i = 0; i < n; i++)
        for (int level = 1; level < graph.node_levels[i]; level++) {
            const Link* links = graph.links_of(int32_t(i), level);
            for (int j = 0; j < graph.degree(level); j++)
                if (links[j] >= 0 && graph.node_levels[links[j]] <= level)
                    return node("a link", i) + " leads to a node that is not on its level";
        }
    std::vector<bool> present(graph.rows);
    for (int64_t i = 0; i < n; i++) {
        const int64_t row = graph.ids[i];
        if (row < 0 || row >= graph.rows) return node("the row number", i) + " is out of range";
        if (present[row]) return node("the row number", i) + " is that of another node too";
        present[row] = true;
    }
    return "";
}

} // namespace kernel
