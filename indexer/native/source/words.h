// Words: the best documents of a segment by BM25, from the postings of a question's terms.
#pragma once

#include <cstdint>

namespace kernel {

constexpr int64_t kWindow = 1 << 13; // documents of a window: their sums stay in the first cache

// The postings of a segment, in place: see indexer/search/postings.py. Postings of a term are in
// entries, one for each window that has any, with documents rising.
struct Postings {
    int64_t documents;
    int64_t wide;                 // 1: codes of two bytes, 0: of one
    const int64_t* entry_starts;  // (entries + 1) the first posting of each entry
    const uint32_t* entry_windows;
    const float* entry_bounds;    // the greatest f / (f + norm) at the segment's average length
    const uint16_t* lows;         // documents, counted from the first one of their window
    const int64_t* term_entries;  // (terms + 1) the first entry of each term
    const uint8_t* codes;         // which of the frequencies
    const double* frequencies;    // (256 or 65536)
    const uint32_t* lengths;      // (windows * kWindow) which of the norms
    const int64_t* rows;          // (documents) the row of each document, rising
};

// The postings of several terms as one: see indexer/search/postings.py. Entries as those of a term.
struct United {
    int64_t entries;
    const int64_t* entry_starts;  // (entries + 1)
    const uint32_t* entry_windows;
    const float* entry_bounds;
    const uint16_t* lows;
    const double* counts;         // (postings) how often the document has one of the terms
};

// A question to one segment.
struct Question {
    int64_t count;
    const int64_t* terms;   // rarest first, at most kTerms; -1: the segment does not have it
    const United* united;   // (count) in place of a term; without entries where there is none
    const double* weights;  // of each term: its inverse document frequency
    const double* norms;    // by length: what is added to a frequency
    const uint8_t* mask;    // whether a row may be found, one byte each; null for all
    int64_t k;
    double ratio;           // the segment's average length over the collection's
    double floor;           // documents with a lower score are left out
};

constexpr int64_t kTerms = 128;
constexpr double kSaturation = 1.2 + 1.0; // k1 + 1 of BM25

// The best k documents by (-score, row): rows and scores (k). Returns their number. Scores are
// summed in the order of the terms. Throws std::bad_alloc.
int64_t best_by_words(const Postings& postings, const Question& question, int64_t* rows,
                      double* scores);

// How many documents that have a term have a row that may be found.
int64_t count_documents(const Postings& postings, int64_t term, const uint8_t* mask);

} // namespace kernel
