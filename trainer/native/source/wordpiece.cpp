// The token ids of ASCII texts, as BERT's tokenizer gives them: lower case, punctuation apart, and
// of each word the longest pieces from its beginning on. Others are left to the library.
#include "wordpiece.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "threads.h"

namespace {

using Pieces = std::unordered_map<std::string_view, int32_t>;

enum Kind : uint8_t { LETTER, SPACE, PUNCTUATION, OTHER };

struct Kinds {
  Kind of[256];
  Kinds() {
    for (int c = 0; c < 256; c++) {
      const bool control = c < 32 || c == 127, space = c == ' ' || c == '\t' || c == '\n' || c == '\r';
      const bool alphanumeric = (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z');
      of[c] = space ? SPACE : c > 127 || control ? OTHER : alphanumeric ? LETTER : PUNCTUATION;
    }
  }
};
const Kinds kinds;

struct Vocabulary {
  std::string bytes;  // the keys of the maps are parts of it
  Pieces first, further;
  std::vector<std::string> added;
  size_t longest = 0;
  int32_t unknown, start, end;
  size_t longest_word;

  // The ids of a word in small letters, from `ids` on; where they end.
  int32_t* word(const char* word, size_t length, int32_t* ids) const {
    if (length > longest_word) return *ids = unknown, ids + 1;
    int32_t* end = ids;
    for (size_t at = 0; at < length;) {
      const Pieces& pieces = at ? further : first;
      size_t size = std::min(length - at, longest);
      Pieces::const_iterator found = pieces.end();
      for (; size && found == pieces.end(); size--) found = pieces.find({word + at, size});
      if (found == pieces.end()) return *ids = unknown, ids + 1;
      *end++ = found->second;
      at += found->first.size();
    }
    return end;
  }

  // The number of ids of a text, at most `most`; -1: the library is to read it.
  int text(const char* text, size_t length, int most, int32_t* ids) const {
    for (const std::string& token : added)
      if (memmem(text, length, token.data(), token.size())) return -1;
    for (size_t i = 0; i < length; i++)
      if (kinds.of[(uint8_t)text[i]] == OTHER) return -1;
    int32_t* limit = ids + most - (end >= 0);
    int32_t* to = ids;
    if (start >= 0) *to++ = start;
    std::string small;
    for (size_t i = 0; i < length && to < limit;) {
      const Kind kind = kinds.of[(uint8_t)text[i]];
      size_t stop = i + 1;
      if (kind == LETTER)
        while (stop < length && kinds.of[(uint8_t)text[stop]] == LETTER) stop++;
      if (kind != SPACE) {
        small.assign(text + i, stop - i);
        for (char& c : small)
          if (c >= 'A' && c <= 'Z') c |= 32;
        to = word(small.data(), small.size(), to);
      }
      i = stop;
    }
    to = std::min(to, limit);
    if (end >= 0) *to++ = end;
    return (int)(to - ids);
  }
};

}  // namespace

extern "C" {

void* wordpiece_new(const WordPiece* from) {
  try {
    auto* made = new Vocabulary;
    made->unknown = from->unknown;
    made->start = from->start;
    made->end = from->end;
    made->longest_word = from->longest_word;
    size_t total = 0;
    for (int i = 0; i < from->count; i++) total += from->lengths[i];
    made->bytes.assign(from->bytes, total);
    const char* at = made->bytes.data();
    for (int i = 0; i < from->count; at += from->lengths[i++]) {
      std::string_view piece(at, from->lengths[i]);
      made->longest = std::max(made->longest, piece.size());
      if (i >= from->count - from->added) {
        made->added.emplace_back(piece);
        continue;
      }
      made->first[piece] = from->ids[i];
      if (piece.substr(0, 2) == "##") made->further[piece.substr(2)] = from->ids[i];
    }
    return made;
  } catch (const std::exception&) {
    return nullptr;
  }
}

void wordpiece_free(void* vocabulary) { delete static_cast<Vocabulary*>(vocabulary); }

// Returns 0, or 1 for want of memory. starts: [count + 1] of each text. Its lengths[i] ids, at most
// `most`, are from starts[i] + 2 · i on; a length of -1: the library is to read it.
int wordpiece_run(const void* vocabulary, const char* texts, const int64_t* starts, int count,
                  int most, int32_t* ids, int32_t* lengths, int threads) {
  constexpr int TOGETHER = 16;
  const auto* all = static_cast<const Vocabulary*>(vocabulary);
  return in_threads(threads, (count + TOGETHER - 1) / TOGETHER, [&](int part) {
    for (int i = part * TOGETHER; i < std::min(count, (part + 1) * TOGETHER); i++)
      lengths[i] = all->text(texts + starts[i], starts[i + 1] - starts[i], most,
                             ids + starts[i] + 2 * (int64_t)i);
  });
}
}
