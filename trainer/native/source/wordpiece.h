// What trainer/native/library.py gives wordpiece.cpp.
#pragma once

#include <cstdint>

// The tokens one behind another, and behind them those that a text may contain as they are.
struct WordPiece {
  const char* bytes;
  const int32_t* lengths;  // [count]
  const int32_t* ids;      // [count]
  int32_t count, added, unknown, longest_word;
  int32_t start, end;      // what each text has around its ids; -1: nothing
};
