// A causal convolution of each column over the last few tokens of its sequence.
//
// The state keeps rows as elements, so each row is rounded to elements before it is multiplied: a sequence gives the
// same bits for any division into steps.
#pragma once

#include "activation.h"
#include "columns.h"

namespace PLIMSOLL_ISA {

template <class T>
class Convolution {
 public:
  using element = typename T::element;

  Convolution(const PlimsollConvolve &op, const PlimsollStep &step, const Workspace<T> &space)
      : op_(op), sequences_{step}, space_(space) {}

  void run(const Crew &crew) const {
    const int blocks = (op_.width + COLUMNS - 1) / COLUMNS;
    with_target(space_, op_.target, [&](const auto &to) {
      crew.each(sequences_.step.sequences * blocks, sequences_.worth(FEW_BLOCKS), [&](int begin, int end, int) {
        for (int item = begin; item < end; item++) convolve(item / blocks, item % blocks * COLUMNS, to);
      });
    });
  }

 private:
  // Columns of one sequence that are computed together, and a number of blocks of them that is too small to share.
  static constexpr int COLUMNS = 64, VECTORS = COLUMNS / LANES, FEW_BLOCKS = 32;

  const PlimsollConvolve &op_;
  const Sequences sequences_;
  const Workspace<T> &space_;

  // Works in place if source and target are the same: a row is written only after it was read.
  template <class To>
  void convolve(int s, int first, const To &to) const {
    const int before = op_.taps - 1, width = op_.width - first < COLUMNS ? op_.width - first : COLUMNS;
    element *state = sequences_.template state<element>(op_.state, s, static_cast<size_t>(before) * op_.width) + first;
    floats kept[PLIMSOLL_TAPS][VECTORS]{};
    for (int k = 0; k < before && !sequences_.is_new(s); k++)
      for (int v = 0; v * LANES < width; v++) kept[k][v] = load_some(state + k * op_.width + v * LANES, width - v * LANES);
    for (int row = sequences_.begin(s); row < sequences_.end(s); row++) {
      const float *x = part_at(space_, op_.source, row) + first;
      for (int v = 0; v * LANES < width; v++) {
        const int at = v * LANES, left = width - at;
        kept[before][v] = rounded_to<element>(load_some(x + at, left));
        floats sum{};
        for (int k = 0; k <= before; k++) {
          sum += kept[k][v] * load_some(op_.weight + k * op_.width + first + at, left);
          if (k > 0) kept[k - 1][v] = kept[k][v];
        }
        if (op_.bias) sum += load_some(op_.bias + first + at, left);
        store_some(to(row) + first + at, activated(op_.activation, sum), left);
      }
    }
    for (int k = 0; k < before; k++)
      for (int v = 0; v * LANES < width; v++) store_some(state + k * op_.width + v * LANES, kept[k][v], width - v * LANES);
  }
};

}  // namespace PLIMSOLL_ISA
