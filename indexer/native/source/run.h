// The threads of one call.
#pragma once

#include <atomic>
#include <exception>
#include <new>
#include <thread>
#include <vector>

namespace kernel {

// Runs `work(thread)` in as many threads, this one among them, or in fewer if the system or the
// memory gives no more. Throws std::bad_alloc, after all have ended, if one of them threw.
template <class Work> void run_in_threads(int threads, const Work& work) {
    std::atomic<bool> failed{false};
    auto guarded = [&](int thread) noexcept {
        try {
            work(thread);
        } catch (const std::exception&) { // std::bad_alloc, or std::length_error of a vector
            failed = true;
        }
    };
    std::vector<std::thread> helpers;
    helpers.reserve(threads);
    try {
        for (int i = 1; i < threads; i++) helpers.emplace_back(guarded, i);
    } catch (const std::exception&) {
        // Those there are do the work: a thread that can be joined must not be destroyed.
    }
    guarded(0);
    for (std::thread& helper : helpers) helper.join();
    if (failed) throw std::bad_alloc();
}

} // namespace kernel
