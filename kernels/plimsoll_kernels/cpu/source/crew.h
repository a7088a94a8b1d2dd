// The threads that compute together. One leads: it publishes the work phase by phase, and takes part. The others help
// while they have a core. The leader never waits for a helper without claimed work, so other load of the machine slows
// a step down by the time that it takes, not by a scheduler time slice in each of a step's hundreds of phases.
#pragma once

#include <atomic>
#include <cstdint>

namespace plimsoll {

// Sets the function that each thread of a crew calls before it sleeps, and the leader when it stops leading, to release
// thread state in its core. There is one such function; a later call replaces it.
void at_rest(void (*rest)());

// Calls that function, before a thread that computes sleeps for another reason.
void rest();

// Leaves `cores` cores to other work from here on, as far as crews have helpers: helpers stop before they claim their
// next range, and continue when fewer cores are left. The call does not wait for that.
void leave(int cores);

class Crew {
 public:
  // Leads a crew of `threads` threads, its own included, until destroyed; calls from several threads run one at a time.
  explicit Crew(int threads);
  ~Crew();
  Crew(const Crew &) = delete;
  Crew &operator=(const Crew &) = delete;

  int threads() const { return threads_; }

  // Calls work(begin, end, member) for ranges that make up [0, items), each of at least `least` items except the last;
  // `member` is below threads() and unique among concurrent calls. Returns when all are done and their results are
  // visible to all.
  template <class Work>
  void each(int items, int least, const Work &work) const {
    if (items <= least || threads_ == 1) {
      if (items > 0) work(0, items, 0);
      return;
    }
    run(items, least,
        [](const void *context, int begin, int end, int member) {
          (*static_cast<const Work *>(context))(begin, end, member);
        },
        &work);
  }

 private:
  using Call = void (*)(const void *, int, int, int);

  void run(int items, int least, Call call, const void *context) const;

  int threads_;
};

}  // namespace plimsoll
