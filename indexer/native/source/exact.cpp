#include "exact.h"
#include "run.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

namespace kernel {
namespace {

constexpr int64_t kBlock = 64; // rows that all queries are compared with while they are in a cache
constexpr int64_t kAhead = 4;  // candidates that are on their way while one is scored
constexpr int64_t kWidened = 12; // queries from which it pays to turn rows of float16 into floats

using ScoredRow = std::pair<float, int64_t>; // score, row

bool better(const ScoredRow& a, const ScoredRow& b) {
    return a.first > b.first || (a.first == b.first && a.second < b.second);
}

// The best of each query that one thread has seen: heaps of at most k, the worst on top.
using Best = std::vector<std::vector<ScoredRow>>;

void offer(std::vector<ScoredRow>& heap, size_t k, ScoredRow row) {
    if (heap.size() < k) {
        heap.push_back(row);
        std::push_heap(heap.begin(), heap.end(), better);
    } else if (better(row, heap.front())) {
        std::pop_heap(heap.begin(), heap.end(), better);
        heap.back() = row;
        std::push_heap(heap.begin(), heap.end(), better);
    }
}

std::vector<float> padded_queries(const Pass& pass, int64_t stride) {
    std::vector<float> queries(pass.count * stride);
    for (int64_t q = 0; q < pass.count; q++)
        std::copy_n(pass.queries + q * pass.dim, pass.dim, queries.begin() + q * stride);
    return queries;
}

void write(std::vector<ScoredRow>& best, int64_t k, int64_t* rows, float* scores) {
    std::sort_heap(best.begin(), best.end(), better);
    for (int64_t i = 0; i < k; i++) {
        const bool there = i < int64_t(best.size());
        rows[i] = there ? best[i].second : -1;
        scores[i] = there ? best[i].first : -std::numeric_limits<float>::infinity();
    }
}

// Memory of one thread: the rows of a block as floats.
using Widened = std::vector<float>;

void score_block(const Pass& pass, const Level& level, const float* queries, int64_t stride,
                 int64_t first, int64_t last, Widened& widened, Best& best) {
    const int64_t bytes = pass.dim * (pass.half ? 2 : 4);
    int64_t numbers[kBlock];
    int64_t taken = 0;
    for (int64_t i = first; i < last; i++) {
        const int64_t number = pass.numbers ? pass.numbers[i] : i;
        if (!pass.mask || pass.mask[number]) numbers[taken++] = number;
    }
    if (taken < last - first || pass.numbers) // far apart: all are asked for before one is read
        for (int64_t i = 0; i < taken; i++)
            for (int64_t at = 0; at < bytes; at += 64)
                __builtin_prefetch(pass.full + numbers[i] * bytes + at);
    int64_t q = 0;
    if (level.four && pass.count >= kWidened) {
        widened.resize(kBlock * stride); // zero behind each row
        for (int64_t i = 0; i < taken; i++) {
            const uint8_t* row = pass.full + numbers[i] * bytes;
            if (pass.half)
                widen_row(row, pass.dim, widened.data() + i * stride);
            else
                std::memcpy(widened.data() + i * stride, row, bytes);
        }
        for (; q + 4 <= pass.count; q += 4) {
            const float* four[4];
            for (int n = 0; n < 4; n++) four[n] = queries + (q + n) * stride;
            for (int64_t i = 0; i < taken; i++) {
                float scores[4];
                level.four(widened.data() + i * stride, four, stride, scores);
                for (int n = 0; n < 4; n++) offer(best[q + n], pass.k, {scores[n], numbers[i]});
            }
        }
    }
    const ScoreRow score = pass.half ? level.half : level.single;
    for (; q < pass.count; q++)
        for (int64_t i = 0; i < taken; i++) {
            const uint8_t* row = pass.full + numbers[i] * bytes;
            offer(best[q], pass.k, {score(row, queries + q * stride, pass.dim), numbers[i]});
        }
}

} // namespace

void add_best(const Pass& pass, const Level& level, int threads, int64_t* rows, float* scores) {
    const int64_t stride = padded(pass.dim, kLanes);
    const std::vector<float> queries = padded_queries(pass, stride);
    std::vector<Best> bests(threads, Best(pass.count));
    for (int64_t q = 0; q < pass.count; q++) // so that few of the new rows enter a heap
        for (int64_t i = 0; i < pass.k && rows[q * pass.k + i] >= 0; i++)
            offer(bests[0][q], pass.k, {scores[q * pass.k + i], rows[q * pass.k + i]});
    std::atomic<int64_t> next{pass.first};
    run_in_threads(threads, [&](int thread) {
        Widened widened;
        int64_t first;
        while ((first = next.fetch_add(kBlock)) < pass.last)
            score_block(pass, level, queries.data(), stride, first,
                        std::min(first + kBlock, pass.last), widened, bests[thread]);
    });
    for (int64_t q = 0; q < pass.count; q++) {
        for (int i = 1; i < threads; i++)
            for (const ScoredRow& row : bests[i][q]) offer(bests[0][q], pass.k, row);
        write(bests[0][q], pass.k, rows + q * pass.k, scores + q * pass.k);
    }
}

void rerank(const Pass& pass, const Level& level, const int64_t* candidates, int64_t size,
            int threads, int64_t* rows, float* scores) {
    const int64_t stride = padded(pass.dim, kLanes), bytes = pass.dim * (pass.half ? 2 : 4);
    const std::vector<float> queries = padded_queries(pass, stride);
    const ScoreRow score = pass.half ? level.half : level.single;
    std::atomic<int64_t> next{0};
    run_in_threads(threads, [&](int) {
        std::vector<ScoredRow> best;
        int64_t q;
        while ((q = next.fetch_add(1)) < pass.count) {
            const int64_t* ids = candidates + q * size;
            best.clear();
            for (int64_t i = 0; i < size; i++) {
                const int64_t later = i + kAhead;
                if (later < size && ids[later] >= 0)
                    for (int64_t at = 0; at < bytes; at += 64)
                        __builtin_prefetch(pass.full + ids[later] * bytes + at);
                if (ids[i] >= 0)
                    offer(best, pass.k,
                          {score(pass.full + ids[i] * bytes, queries.data() + q * stride, pass.dim),
                           ids[i]});
            }
            write(best, pass.k, rows + q * pass.k, scores + q * pass.k);
        }
    });
}

} // namespace kernel
