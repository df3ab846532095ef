// Work that is divided among threads.
#pragma once

#include <atomic>
#include <exception>
#include <thread>
#include <vector>

// Calls work(i) for each i below `count`, in at most so many threads. Returns 0, or 1 if one of the
// calls threw: memory is wanting.
template <class Work>
int in_threads(int threads, int count, const Work& work) {
  std::atomic<int> next{0}, failed{0};
  const auto some = [&] {
    try {
      for (int i; (i = next++) < count;) work(i);
    } catch (const std::exception&) {
      failed = 1;
    }
  };
  std::vector<std::thread> others;
  try {
    for (int i = 1; i < threads && i < count; i++) others.emplace_back(some);
  } catch (const std::exception&) {  // no more threads: those that there are do it all
  }
  some();
  for (auto& other : others) other.join();
  return failed;
}
