// Columns of rows: what lies there in part, ends of rows that fill no vector, and where a step's sequences keep states.
#pragma once

#include "interface.h"
#include "normalise.h"
#include "workspace.h"

namespace PLIMSOLL_ISA {

// The next `count` values, of which there may be more than LANES, or so few that zeros follow.
template <class E>
inline floats load_some(const E *p, int count) {
  if (count >= LANES) return load(p);
  E all[LANES]{};
  std::memcpy(all, p, sizeof(E) * count);
  return load(all);
}

template <class E>
inline void store_some(E *p, floats v, int count) {
  if (count >= LANES) return store(p, v);
  E all[LANES];
  store(all, v);
  std::memcpy(p, all, sizeof(E) * count);
}

// As it is once it was stored as an element.
template <class E>
inline floats rounded_to(floats v) {
  if constexpr (sizeof(E) == sizeof(float)) return v;
  E all[LANES];
  store(all, v);
  return load(all);
}

// work(to), where to(row) gives what is written there of a row: floats or operands.
template <class T, class Work>
inline void with_target(const Workspace<T> &space, int target, const Work &work) {
  if (space.has_operands(target))
    work([&](int row) { return space.operands_at(target, row); });
  else
    work([&](int row) { return space.floats_at(target, row); });
}

template <class T>
inline const float *part_at(const Workspace<T> &space, const PlimsollPart &part, int row) {
  return space.floats_at(part.place, row) + part.first;
}

// What the ops of a step see of its sequences: their rows, and the state that each keeps.
struct Sequences {
  const PlimsollStep &step;

  int begin(int s) const { return step.first_rows[s]; }
  int end(int s) const { return step.first_rows[s + 1]; }
  // Whether it begins with this step: whatever its state holds is another's.
  bool is_new(int s) const { return step.positions[step.first_rows[s]] == 0; }
  // Its state under a number, of `size` values.
  template <class E>
  E *state(int number, int s, size_t size) const {
    return static_cast<E *>(step.states[number]) + step.state_rows[s] * size;
  }
  // Of items that all sequences have, how many are worth handing over where `few` are with one row each.
  int worth(int few) const {
    const int least = static_cast<int>(static_cast<int64_t>(few) * step.sequences / step.rows);
    return least > 1 ? least : 1;
  }
};

}  // namespace PLIMSOLL_ISA
