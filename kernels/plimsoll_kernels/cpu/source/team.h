// The threads that compute one call together: who I am, my share of the work, and a barrier.
#pragma once

#include <atomic>
#include <sched.h>

#include "vector.h"

namespace PLIMSOLL_ISA {

struct Range {
  int begin, end;
};

// Threads meet here again and again. They spin, since the others are at most microseconds away, and yield their core
// when that takes long: then more threads than cores are at work.
class Barrier {
 public:
  explicit Barrier(int count) : count_(count), waiting_(count) {}

  void wait() {
    const int round = round_.load(std::memory_order_relaxed);
    if (waiting_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      waiting_.store(count_, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; round_.load(std::memory_order_acquire) == round; spins++) {
      _mm_pause();
      if (spins > PATIENCE) sched_yield();
    }
  }

 private:
  static constexpr int PATIENCE = 20000;
  const int count_;
  alignas(64) std::atomic<int> waiting_;
  alignas(64) std::atomic<int> round_{0};
};

struct Team {
  int id, count;
  Barrier *barrier;

  void meet() const {
    if (count > 1) barrier->wait();
  }

  // My part of `items`: as even as it goes, and the same in every call.
  Range share(int items) const {
    const int64_t n = items;
    return {static_cast<int>(n * id / count), static_cast<int>(n * (id + 1) / count)};
  }
};

}  // namespace PLIMSOLL_ISA
