// Columns of rows: partial vectors at the ends of rows, and the states of a step's sequences.
#pragma once

#include "interface.h"
#include "normalise.h"
#include "workspace.h"

namespace PLIMSOLL_ISA {

// Loads the next `count` values: at most LANES of them, padded with zeros.
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

// A value rounded as if it were stored as an element and loaded again.
template <class E>
inline floats rounded_to(floats v) {
  if constexpr (sizeof(E) == sizeof(float)) return v;
  E all[LANES];
  store(all, v);
  return load(all);
}

// Calls work(to), where to(row) returns the destination of a row: floats or operands.
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

// The sequences of a step for its ops: their rows and states.
struct Sequences {
  const PlimsollStep &step;

  int begin(int s) const { return step.first_rows[s]; }
  int end(int s) const { return step.first_rows[s + 1]; }
  // Whether the sequence begins in this step, so that its state's memory is undefined.
  bool is_new(int s) const { return step.positions[step.first_rows[s]] == 0; }
  // The sequence's state number `number`, of `size` values.
  template <class E>
  E *state(int number, int s, size_t size) const {
    return static_cast<E *>(step.states[number]) + step.state_rows[s] * size;
  }
  // The least number of items to give to another thread, if it is `few` for sequences of one row each.
  int worth(int few) const {
    const int least = static_cast<int>(static_cast<int64_t>(few) * step.sequences / step.rows);
    return least > 1 ? least : 1;
  }
};

}  // namespace PLIMSOLL_ISA
