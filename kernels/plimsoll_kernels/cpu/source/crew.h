// The threads that compute together. One leads: it says what there is to do, phase by phase, and takes part. The others
// help as far as they are on a core: nobody waits for a helper that holds no work, so a machine with other things to do
// slows a step down by what it takes, not by a turn of its scheduler at each of a step's hundreds of phases.
#pragma once

#include <atomic>
#include <cstdint>

namespace plimsoll {

// What each thread of a crew calls before it sleeps, and the one that leads when it stops leading: gives up what its core
// keeps for it. There is one such call; a later one takes the place of an earlier one.
void at_rest(void (*rest)());

// From now on crews leave so many cores to others, as far as they have helpers: those stand back before the next range
// that they would take, and come back when fewer cores are left to others. Nobody waits for that.
void leave(int cores);

class Crew {
 public:
  // Leads a crew of so many threads, its own included, until destroyed; calls from several threads take turns.
  explicit Crew(int threads);
  ~Crew();
  Crew(const Crew &) = delete;
  Crew &operator=(const Crew &) = delete;

  int threads() const { return threads_; }

  // work(begin, end, member) for ranges that make up [0, items), each of at least `least` but the last; `member` is
  // below threads() and nobody else's at the time. Returns when all is done, and seen by all.
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
