// The C interface. No exception crosses it.
#include "build.h"
#include "exact.h"
#include "run.h"
#include "walk.h"
#include "words.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <new>
#include <string>
#include <vector>

namespace kernel {
namespace {

constexpr int64_t kSlice = 64;      // queries that a thread takes at once: neighbours share caches
constexpr int kScratch = 64;        // scratch that is kept between calls
constexpr int64_t kNoMemory = -1, kUnusable = -2; // results of calls

// The walks of one thread. Their memory is kept between calls.
struct Scratch {
    std::vector<std::unique_ptr<Walk>> walks;

    Walk& walk(int64_t number, const WalkBase& base) {
        if (int64_t(walks.size()) <= number) walks.push_back(std::make_unique<Walk>(base));
        return *walks[number];
    }
};

struct Request {
    const float* queries;
    const int64_t* order; // in which the queries are searched; null for their own
    int64_t count;
    Point point;
    const int32_t* nodes; // (size) all of which are scored; null: walks find the best
    int64_t size;
    int64_t* rows;
    float* scores;
};

class Searcher {
  public:
    Searcher(const Graph& graph, const Level& level) : base_(graph, level) {}

    ~Searcher() {
        for (auto& slot : kept_) delete slot.load();
    }

    // The number of queries with fewer than k rows, or kUnusable. Throws std::bad_alloc.
    int64_t search(const Request& request, int threads) {
        std::atomic<int64_t> taken{0}, incomplete{0};
        std::atomic<bool> unusable{false};
        const int64_t share = (request.count + threads - 1) / threads;
        const int64_t slice = std::max<int64_t>(1, std::min(kSlice, share / 4));
        run_in_threads(threads, [&](int) {
            std::unique_ptr<Scratch> scratch = take();
            incomplete += run(*scratch, request, taken, slice, unusable);
            give(std::move(scratch));
        });
        return unusable ? kUnusable : incomplete.load();
    }

    // For tests: codes scored and nodes whose links were followed, in all searches that have ended.
    void work(int64_t* totals) const {
        totals[0] = compared_;
        totals[1] = followed_;
    }

  private:
    // Slots rather than a list with a lock: a process forked during a search holds no lock.
    std::unique_ptr<Scratch> take() {
        for (auto& slot : kept_)
            if (slot.load(std::memory_order_relaxed))
                if (Scratch* scratch = slot.exchange(nullptr)) return std::unique_ptr<Scratch>(scratch);
        return std::make_unique<Scratch>();
    }

    void give(std::unique_ptr<Scratch> scratch) {
        for (auto& slot : kept_) {
            Scratch* empty = nullptr;
            if (slot.compare_exchange_strong(empty, scratch.get())) {
                scratch.release();
                return;
            }
        }
    }

    int64_t run(Scratch& scratch, const Request& request, std::atomic<int64_t>& taken,
                int64_t slice, std::atomic<bool>& unusable) {
        int64_t next = 0, end = 0, incomplete = 0;
        auto draw = [&]() -> int64_t { // the number of the next query, -1 after the last
            if (next == end) {
                next = taken.fetch_add(slice);
                end = std::min(next + slice, request.count);
            }
            if (next >= end) return -1;
            const int64_t i = next++;
            return request.order ? request.order[i] : i;
        };
        struct Turn {
            Walk* walk;
            int64_t query;
        };
        Turn turns[kInterleaved];
        int active = 0;
        auto begin = [&](Turn& turn) {
            while ((turn.query = draw()) >= 0) {
                const float* query = request.queries + turn.query * base_.graph.dim;
                if (request.nodes ? turn.walk->scan(query, request.point, request.nodes, request.size)
                                  : turn.walk->start(query, request.point))
                    return true;
                unusable = true;
            }
            return false;
        };
        for (int64_t i = 0; i < std::min(kInterleaved, request.count); i++) {
            turns[active].walk = &scratch.walk(i, base_);
            if (!begin(turns[active])) break;
            active++;
        }
        while (active > 0) {
            for (int i = 0; i < active; i++) turns[i].walk->gather();
            for (int i = 0; i < active;) {
                Turn& turn = turns[i];
                if (!turn.walk->score()) {
                    const int64_t first = turn.query * request.point.k;
                    float* scores = request.scores ? request.scores + first : nullptr;
                    incomplete += turn.walk->finish(request.rows + first, scores) < request.point.k;
                    if (!begin(turn)) {
                        std::swap(turn, turns[--active]);
                        continue;
                    }
                }
                i++;
            }
        }
        count(scratch);
        return incomplete;
    }

    void count(Scratch& scratch) {
        for (auto& walk : scratch.walks) {
            compared_ += walk->take_compared();
            followed_ += walk->take_followed();
        }
    }

    std::atomic<int64_t> compared_{0}, followed_{0};
    const WalkBase base_;
    std::atomic<Scratch*> kept_[kScratch] = {};
};

// What `make` returns, or null with what is wrong with the graph in `message`, empty if there is not
// enough memory.
template <class Make>
void* opened(const Graph& graph, char* message, int64_t size, const Make& make) {
    message[0] = 0;
    try {
        const std::string wrong = defect(graph);
        if (wrong.empty()) return make();
        std::snprintf(message, size, "%s", wrong.c_str());
    } catch (const std::bad_alloc&) {
    }
    return nullptr;
}

// What `work` returns, or kNoMemory.
template <class Work> int64_t guarded(const Work& work) {
    try {
        return work();
    } catch (const std::bad_alloc&) {
        return kNoMemory;
    }
}

} // namespace
} // namespace kernel

using namespace kernel;

extern "C" {

// The name and the title of a level this processor can run, the best first; null after the last.
const char* kernel_level(int number) {
    return number < int(levels().size()) ? levels()[number].name : nullptr;
}

const char* kernel_title(int number) {
    return number < int(levels().size()) ? levels()[number].title : nullptr;
}

// A searcher at a level, or null with a message, see `opened`. The arrays of the graph must outlive
// it, except the matrix, which is read only here.
void* kernel_open(const Graph* graph, int level, char* message, int64_t size) {
    return opened(*graph, message, size, [&] { return new Searcher(*graph, levels()[level]); });
}

void kernel_close(void* searcher) { delete static_cast<Searcher*>(searcher); }

// The number of queries with fewer than k rows. -1 if there is not enough memory, -2 if a query is
// zero or not finite: the results then mean nothing.
int64_t kernel_search(void* searcher, const float* queries, const int64_t* order, int64_t count,
                      const Point* point, int threads, int64_t* rows, float* scores) {
    return guarded([&] {
        const Request request = {queries, order, count, *point, nullptr, 0, rows, scores};
        return static_cast<Searcher*>(searcher)->search(request, threads);
    });
}

// As kernel_search, but all of these nodes are scored, which the caller has checked.
int64_t kernel_scan(void* searcher, const float* queries, int64_t count, const Point* point,
                    const int32_t* nodes, int64_t size, int threads, int64_t* rows,
                    float* scores) {
    return guarded([&] {
        const Request request = {queries, nullptr, count, *point, nodes, size, rows, scores};
        return static_cast<Searcher*>(searcher)->search(request, threads);
    });
}

// A builder of a graph whose links are all -1, or null with a message, see `opened`.
void* kernel_build(const Graph* graph, int32_t* links, const float* lowest, int level,
                   int candidates, int64_t bytes, int threads, char* message, int64_t size) {
    return opened(*graph, message, size, [&] {
        return new Builder(*graph, links, lowest, levels()[level], candidates, bytes, threads);
    });
}

// The steps of linking the nodes of a level, see build.h; -1 if there is not enough memory.
int64_t kernel_divide(void* builder, const int32_t* nodes, int64_t count, int level, int threads) {
    return guarded([&] { return static_cast<Builder*>(builder)->divide(nodes, count, level, threads); });
}

int64_t kernel_group(void* builder, int64_t round) {
    return guarded([&] { return static_cast<Builder*>(builder)->group(round); });
}

int64_t kernel_compare(void* builder, int64_t first, int64_t last, int threads) {
    return guarded([&] { return static_cast<Builder*>(builder)->compare(first, last, threads), 0; });
}

int64_t kernel_end(void* builder, int64_t round, int threads) {
    return guarded([&] { return static_cast<Builder*>(builder)->end(round, threads), 0; });
}

void kernel_built(void* builder) { delete static_cast<Builder*>(builder); }

// For tests: codes scored and nodes whose links were followed, in all searches that have ended.
void kernel_work(const void* searcher, int64_t* totals) {
    static_cast<const Searcher*>(searcher)->work(totals);
}

// Adds rows to the best so far of each query; 0, or -1 if there is not enough memory.
int64_t kernel_add_best(int level, const Pass* pass, int threads, int64_t* rows, float* scores) {
    return guarded([&] { return add_best(*pass, levels()[level], threads, rows, scores), 0; });
}

// The best of each query's candidates; 0, or -1 if there is not enough memory.
int64_t kernel_rerank(int level, const Pass* pass, const int64_t* candidates, int64_t size,
                      int threads, int64_t* rows, float* scores) {
    return guarded([&] {
        return rerank(*pass, levels()[level], candidates, size, threads, rows, scores), 0;
    });
}

// The best documents by words, see words.h: their number, or -1 if there is not enough memory.
int64_t kernel_best_by_words(const Postings* postings, int64_t count, const int64_t* terms,
                          const United* united, const double* weights, const double* norms,
                          const uint8_t* mask, int64_t k, double ratio, double floor, int64_t* rows,
                          double* scores) {
    const Question question{count, terms, united, weights, norms, mask, k, ratio, floor};
    return guarded([&] { return best_by_words(*postings, question, rows, scores); });
}

// The documents of a term whose row may be found.
int64_t kernel_words_count(const Postings* postings, int64_t term, const uint8_t* mask) {
    return count_documents(*postings, term, mask);
}

// For tests: the scores of codes, at a level.
void kernel_score_codes(int level, const uint8_t* codes, int64_t width, const int8_t* query,
                        const int32_t* rows, int count, int32_t* scores) {
    levels()[level].codes(codes, width, query, rows, count, scores);
}

// As `kernel_score_codes` for a block of these rows; returns which scores are above `least`.
uint64_t kernel_score_block(int level, const uint8_t* codes, int64_t width, const int8_t* query,
                            const int32_t* rows, int count, int32_t least, int32_t* scores) {
    std::vector<uint8_t> block(padded(width, kCodeBlock) * kBlockCodes);
    pack_codes(codes, width, rows, count, block.data());
    return levels()[level].block(block.data(), width, query, least, scores);
}

} // extern "C"
