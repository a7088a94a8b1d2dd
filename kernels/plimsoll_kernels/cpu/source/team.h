// The threads that compute one call together: who I am, my share of the work, and a barrier.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

#include "vector.h"

namespace PLIMSOLL_ISA {

struct Range {
  int begin, end;
};

// Threads meet here again and again. They spin, since the others are at most microseconds away. When that takes long,
// somebody was taken off a core: sleeping frees this one for whoever is waited for.
class Barrier {
 public:
  explicit Barrier(int count) : count_(count), waiting_(count) {}

  void wait() {
    const uint32_t round = round_.load(std::memory_order_relaxed);
    if (waiting_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      waiting_.store(count_, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_seq_cst);
      if (asleep_.load(std::memory_order_seq_cst) > 0) futex(FUTEX_WAKE_PRIVATE, INT32_MAX);
      return;
    }
    for (int spins = 0; spins < PATIENCE; spins++) {
      if (round_.load(std::memory_order_acquire) != round) return;
      _mm_pause();
    }
    asleep_.fetch_add(1, std::memory_order_seq_cst);
    while (round_.load(std::memory_order_seq_cst) == round) futex(FUTEX_WAIT_PRIVATE, round);
    asleep_.fetch_sub(1, std::memory_order_relaxed);
  }

 private:
  static constexpr int PATIENCE = 2000;
  const int count_;
  alignas(64) std::atomic<int> waiting_;
  alignas(64) std::atomic<uint32_t> round_{0};
  std::atomic<int> asleep_{0};

  void futex(int operation, uint32_t value) {
    syscall(SYS_futex, reinterpret_cast<uint32_t *>(&round_), operation, value, nullptr, nullptr, 0);
  }
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
