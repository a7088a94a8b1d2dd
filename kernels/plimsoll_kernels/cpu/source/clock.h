// A monotonic clock.
#pragma once

#include <time.h>

namespace PLIMSOLL_ISA {

inline double seconds_now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

}  // namespace PLIMSOLL_ISA
