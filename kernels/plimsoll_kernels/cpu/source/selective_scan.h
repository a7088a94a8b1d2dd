// Mamba's selective scan (Gu and Dao, 2023), row by row in float32: a sequence gives the same bits for any division
// into steps.
#pragma once

#include "columns.h"
#include "softplus.h"

namespace PLIMSOLL_ISA {

// A thread computes LANES columns of one sequence at a time, and keeps their states for all rows. Here a state is
// [count, width], so that neighbouring columns are computed together.
template <class T>
class SelectiveScan {
 public:
  SelectiveScan(const PlimsollSelectiveScan &op, const PlimsollStep &step, const Workspace<T> &space)
      : op_(op), sequences_{step}, space_(space) {}

  void run(const Crew &crew) const {
    const int blocks = (op_.width + LANES - 1) / LANES;
    with_target(space_, op_.target, [&](const auto &to) {
      crew.each(sequences_.step.sequences * blocks, sequences_.worth(FEW_BLOCKS), [&](int begin, int end, int) {
        for (int item = begin; item < end; item++) scan(item / blocks, item % blocks * LANES, to);
      });
    });
  }

 private:
  static constexpr int FEW_BLOCKS = 8; // too few to give to another thread

  const PlimsollSelectiveScan &op_;
  const Sequences sequences_;
  const Workspace<T> &space_;

  // h = e^(d A) h + d x B, y = h C + D x.
  template <class To>
  void scan(int s, int column, const To &to) const {
    const int left = op_.width - column;
    const size_t size = static_cast<size_t>(op_.count) * op_.width;
    float *state = sequences_.template state<float>(op_.state, s, size) + column;
    const floats bias = load_some(op_.step_bias + column, left), skip = load_some(op_.skip + column, left);
    floats h[PLIMSOLL_STATES];
    for (int n = 0; n < op_.count; n++)
      h[n] = sequences_.is_new(s) ? floats{} : load_some(state + static_cast<size_t>(n) * op_.width, left);
    for (int row = sequences_.begin(s); row < sequences_.end(s); row++) {
      const floats x = load_some(part_at(space_, op_.source, row) + column, left);
      const floats step = softplus(load_some(part_at(space_, op_.times, row) + column, left) + bias);
      const float *inputs = part_at(space_, op_.inputs, row), *outputs = part_at(space_, op_.outputs, row);
      const floats added = step * x;
      floats result = x * skip;
      for (int n = 0; n < op_.count; n++) {
        const floats decay = load_some(op_.decay + static_cast<size_t>(n) * op_.width + column, left);
        h[n] = h[n] * exponential(step * decay) + added * inputs[n];
        result += h[n] * outputs[n];
      }
      store_some(to(row) + column, result, left);
    }
    for (int n = 0; n < op_.count; n++) store_some(state + static_cast<size_t>(n) * op_.width, h[n], left);
  }
};

}  // namespace PLIMSOLL_ISA
