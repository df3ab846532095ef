// MaxScore in windows of documents. Terms are ordered from the rarest. In each window the last ones,
// which together cannot lift a document above the k-th best, are only looked up for the documents
// that the others have (Turtle and Flood 1995, "Query evaluation: strategies and optimizations");
// the bounds are those of the window, as in block-max WAND (Ding and Suel 2011).
#include "words.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace kernel {
namespace {

constexpr int64_t kLookup = 16; // postings that are read in the time of one look-up
constexpr double kSlack = 1.0 + 1e-6; // bounds are floats, and sums are rounded

struct Cursor {
    const int64_t* starts; // of the entries
    const uint32_t* windows;
    const float* bounds;
    const uint16_t* lows;
    const double* counts; // null: the codes say how often
    int64_t entry, last; // entries of the term that are left
    double weight;
    double bound; // of the present window
    int64_t begin, end; // postings of the present window
};

struct Candidate {
    double sum;
    uint16_t low; // the document, in its window
};

struct Best {
    double score;
    int64_t document;
};

// Whether a is ranked before b: a heap by this has the last one on top.
bool before(const Best& a, const Best& b) {
    return a.score > b.score || (a.score == b.score && a.document < b.document);
}

template <class Code> class Search {
  public:
    Search(const Postings& postings, const Question& question)
        : postings_(postings), question_(question), codes_(reinterpret_cast<const Code*>(postings.codes)),
          sums_(kWindow, 0.0), places_(kWindow, 0), threshold_(question.floor) {
        candidates_.reserve(kWindow);
        best_.reserve(std::min(question.k, postings.documents) + 1);
    }

    int64_t run(int64_t* rows, double* scores) {
        Cursor cursors[kTerms];
        int count = 0;
        for (int64_t i = 0; i < question_.count; i++) {
            const Cursor cursor = begin(i);
            if (cursor.entry < cursor.last) cursors[count++] = cursor;
        }
        while (true) {
            int64_t window = std::numeric_limits<int64_t>::max();
            for (int i = 0; i < count; i++)
                if (cursors[i].entry < cursors[i].last)
                    window = std::min<int64_t>(window, cursors[i].windows[cursors[i].entry]);
            if (window == std::numeric_limits<int64_t>::max()) break;
            search_window(window, cursors, count);
        }
        std::sort(best_.begin(), best_.end(), before);
        for (size_t i = 0; i < best_.size(); i++) {
            rows[i] = postings_.rows[best_[i].document];
            scores[i] = best_[i].score;
        }
        return best_.size();
    }

  private:
    Cursor begin(int64_t i) const {
        const double weight = question_.weights[i];
        if (const United& u = question_.united[i]; u.entries)
            return {u.entry_starts, u.entry_windows, u.entry_bounds, u.lows, u.counts,
                    0, u.entries, weight, 0, 0, 0};
        const int64_t term = question_.terms[i];
        const bool missing = term < 0;
        return {postings_.entry_starts, postings_.entry_windows, postings_.entry_bounds,
                postings_.lows, nullptr, missing ? 0 : postings_.term_entries[term],
                missing ? 0 : postings_.term_entries[term + 1], weight, 0, 0, 0};
    }

    void search_window(int64_t window, Cursor* cursors, int count) {
        Cursor here[kTerms];
        int terms = 0;
        for (int i = 0; i < count; i++) {
            Cursor& cursor = cursors[i];
            const int64_t entry = cursor.entry;
            if (entry == cursor.last || cursor.windows[entry] != window) continue;
            cursor.entry++;
            cursor.begin = cursor.starts[entry];
            cursor.end = cursor.starts[entry + 1];
            cursor.bound = cursor.weight * kSaturation * highest(cursor.bounds[entry]) * kSlack;
            here[terms++] = cursor;
        }
        double rest[kTerms + 1]; // rest[i]: the most that terms i, i + 1, … can add
        rest[terms] = 0;
        for (int i = terms; i-- > 0;) rest[i] = rest[i + 1] + here[i].bound;
        int essential = 0;
        while (essential < terms && rest[essential] >= threshold_) essential++;
        const int64_t first = window * kWindow;
        const uint32_t* lengths = postings_.lengths + first;
        for (int i = 0; i < essential; i++) {
            const Cursor& term = here[i];
            reading(term, [&](auto frequency) {
                for (int64_t p = term.begin; p < term.end; p++) {
                    const uint16_t low = term.lows[p] & (kWindow - 1);
                    sums_[low] += part(term.weight, frequency(p), lengths[low]);
                }
            });
        }
        candidates_.clear();
        for (int i = 0; i < essential; i++)
            for (int64_t p = here[i].begin; p < here[i].end; p++) {
                const uint16_t low = here[i].lows[p] & (kWindow - 1);
                const double sum = sums_[low];
                if (sum == 0) continue; // seen by an earlier term
                sums_[low] = 0;
                if (sum + rest[essential] >= threshold_ && may_be_found(first + low))
                    candidates_.push_back({sum, low});
            }
        for (int i = essential; i < terms && !candidates_.empty(); i++) {
            add(here[i], lengths);
            drop_below(threshold_ - rest[i + 1]);
        }
        for (const Candidate& candidate : candidates_) keep({candidate.sum, first + candidate.low});
    }

    bool may_be_found(int64_t document) const {
        return document < postings_.documents &&
               (!question_.mask || question_.mask[postings_.rows[document]]);
    }

    // Adds a term to the candidates: each is looked up, or every posting, whichever takes less time.
    void add(const Cursor& term, const uint32_t* lengths) {
        reading(term, [&](auto frequency) { add(term, lengths, frequency); });
    }

    template <class Frequency>
    void add(const Cursor& term, const uint32_t* lengths, Frequency frequency) {
        const uint16_t* begin = term.lows + term.begin;
        const uint16_t* end = term.lows + term.end;
        if (int64_t(candidates_.size()) * kLookup < end - begin) {
            for (Candidate& candidate : candidates_) {
                const uint16_t* at = std::lower_bound(begin, end, candidate.low);
                if (at != end && *at == candidate.low)
                    candidate.sum +=
                        part(term.weight, frequency(at - term.lows), lengths[candidate.low]);
            }
            return;
        }
        for (size_t i = 0; i < candidates_.size(); i++) places_[candidates_[i].low] = uint16_t(i + 1);
        for (int64_t p = term.begin; p < term.end; p++) {
            const uint16_t low = term.lows[p] & (kWindow - 1);
            if (const uint16_t place = places_[low])
                candidates_[place - 1].sum += part(term.weight, frequency(p), lengths[low]);
        }
        for (const Candidate& candidate : candidates_) places_[candidate.low] = 0;
    }

    void drop_below(double least) {
        size_t kept = 0;
        for (const Candidate& candidate : candidates_) {
            candidates_[kept] = candidate;
            kept += candidate.sum >= least;
        }
        candidates_.resize(kept);
    }

    void keep(const Best& document) {
        if (document.score < threshold_) return;
        if (int64_t(best_.size()) == question_.k) {
            if (!before(document, best_.front())) return;
            std::pop_heap(best_.begin(), best_.end(), before);
            best_.back() = document;
        } else {
            best_.push_back(document);
        }
        std::push_heap(best_.begin(), best_.end(), before);
        if (int64_t(best_.size()) == question_.k) threshold_ = best_.front().score;
    }

    // Calls `read` with what tells how often a document has the term, by posting.
    template <class Read> void reading(const Cursor& term, Read read) const {
        if (term.counts)
            read([counts = term.counts](int64_t posting) { return counts[posting]; });
        else
            read([frequencies = postings_.frequencies, codes = codes_](int64_t posting) {
                return frequencies[codes[posting]];
            });
    }

    double part(double weight, double frequency, uint32_t length) const {
        return weight * ((frequency * kSaturation) / (frequency + question_.norms[length]));
    }

    // A bound at the segment's average length, at that of the collection.
    double highest(double bound) const {
        const double ratio = std::min(1.0, question_.ratio);
        return bound / (bound + (1 - bound) * ratio);
    }

    const Postings& postings_;
    const Question& question_;
    const Code* codes_;
    std::vector<double> sums_;       // of the documents of a window, by the terms so far
    std::vector<uint16_t> places_;   // of these, in the candidates, from 1; 0: none
    std::vector<Candidate> candidates_;
    std::vector<Best> best_;
    double threshold_;
};

} // namespace

int64_t best_by_words(const Postings& postings, const Question& question, int64_t* rows,
                      double* scores) {
    if (postings.wide) return Search<uint16_t>(postings, question).run(rows, scores);
    return Search<uint8_t>(postings, question).run(rows, scores);
}

int64_t count_documents(const Postings& postings, int64_t term, const uint8_t* mask) {
    int64_t count = 0;
    for (int64_t e = postings.term_entries[term]; e < postings.term_entries[term + 1]; e++) {
        const int64_t first = postings.entry_windows[e] * kWindow;
        for (int64_t p = postings.entry_starts[e]; p < postings.entry_starts[e + 1]; p++) {
            const int64_t document = first + (postings.lows[p] & (kWindow - 1));
            if (document < postings.documents) count += mask[postings.rows[document]] != 0;
        }
    }
    return count;
}

} // namespace kernel
