// The exchange between the ranks of a group: each is a process that has a part of a sum. One thread of a rank calls it
// at a time, and all ranks make the same calls in the same order.
//
// Every rank gets the same bits: each sum is part 0 + part 1 + ..., in the order of the ranks, whichever rank adds them.
#pragma once

#include <time.h>

#include <cstddef>
#include <cstdint>

#include "interface.h"

namespace plimsoll {

constexpr int MOST_RANKS = 16;

inline double exchange_seconds() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

// A rank's part of a sum, floats [rows, width], and the destination: target = sum x scale, or target += sum x scale.
// Elements are numbered as if rows were dense.
struct Part {
  const float *source;
  size_t source_stride;
  float *target;
  size_t target_stride, rows, width;
  float scale;
  bool adds;

  size_t count() const { return rows * width; }

  // Copies the elements [first, first + count) of the source.
  void read(size_t first, size_t count, float *to) const;
  // Adds parts of `count` elements in order, and writes the result to the target's elements from `first` on.
  void write(size_t first, size_t count, const float *const *parts, int ranks) const;
};

// Adds at least two parts of `count` floats in order.
void add_parts(const float *const *parts, int ranks, size_t count, float *sum);

// The share of one rank in a piece of `count` elements: it adds the parts of this share for all ranks. The first ranks'
// shares are the largest, whole cache lines.
struct Share {
  size_t first, count;

  static Share of(size_t count, int ranks, int rank) {
    constexpr size_t LINE = 16;
    const size_t each = (count + ranks * LINE - 1) / (ranks * LINE) * LINE;
    const size_t begin = rank * each < count ? rank * each : count;
    return {begin, count - begin < each ? count - begin : each};
  }
};

// The base of all exchanges. Functions that return bool return whether they succeeded; `status` has the failure.
struct Exchange {
  struct Calls {
    bool (*sum)(Exchange &, const Part &);
    bool (*broadcast)(Exchange &, char *bytes, size_t size);
    void (*abort)(Exchange &);
    void (*close)(Exchange &);
  };

  const Calls *calls;
  int ranks, rank;
  bool check; // compares the calls of all ranks
  PlimsollExchangeStatus status;

  bool sum(const Part &part) {
    return timed([&] { return calls->sum(*this, part); });
  }
  bool broadcast(char *bytes, size_t size) {
    return timed([&] { return calls->broadcast(*this, bytes, size); });
  }

  // Records the first failure.
  bool fail(PlimsollExchangeStatus failure);
  bool aborted();
  bool closed(int rank, int error);
  bool mismatch(int one, int kind, int64_t size, int other, int other_kind, int64_t other_size);

 private:
  template <class Work>
  bool timed(const Work &work) {
    if (status.failure) return false;
    const double start = exchange_seconds();
    const bool done = work();
    status.seconds += exchange_seconds() - start;
    return done;
  }
};

// Limits how long a rank spins before it sleeps: some tens of microseconds, or less if ranks share cores.
class Patience {
 public:
  explicit Patience(bool shares_cores);

  // Returns after a pause, or false if the time for spinning is over.
  bool spin();
  // The seconds of waiting so far.
  double seconds() const { return exchange_seconds() - since_; }

 private:
  double since_, until_;
};

}  // namespace plimsoll
