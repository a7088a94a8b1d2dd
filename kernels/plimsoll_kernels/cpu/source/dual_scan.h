// Mamba 2's scan (Dao and Gu, 2024), row by row in float32: a sequence gives the same bits for any division into steps.
#pragma once

#include "columns.h"
#include "softplus.h"

namespace PLIMSOLL_ISA {

// A thread computes one head of one sequence at a time. Its state [head_dim, width] passes through the first level
// cache in parts of some rows, once for LANES rows of the sequence.
template <class T>
class DualScan {
 public:
  DualScan(const PlimsollDualScan &op, const PlimsollStep &step, const Workspace<T> &space)
      : op_(op), inner_(op.heads * op.head_dim), sequences_{step}, space_(space) {}

  void run(const Crew &crew) const {
    with_target(space_, op_.target, [&](const auto &to) {
      crew.each(sequences_.step.sequences * op_.heads, sequences_.worth(FEW_HEADS), [&](int begin, int end, int) {
        for (int item = begin; item < end; item++) scan(item / op_.heads, item % op_.heads, to);
      });
    });
  }

 private:
  // Rows of a state that are computed together, and a number of heads that is too small to give to another thread.
  static constexpr int STATE_ROWS = 4, FEW_HEADS = 4;

  const PlimsollDualScan &op_;
  const int inner_;
  const Sequences sequences_;
  const Workspace<T> &space_;

  // Time steps of some rows of a sequence, and the factors of the state.
  struct Times {
    float step[LANES], kept[LANES];
  };

  template <class To>
  void scan(int s, int head, const To &to) const {
    const size_t size = static_cast<size_t>(op_.head_dim) * op_.width;
    float *state = sequences_.template state<float>(op_.state, s, size * op_.heads) + head * size;
    if (sequences_.is_new(s)) std::memset(state, 0, sizeof(float) * size);
    for (int row = sequences_.begin(s); row < sequences_.end(s); row += LANES) {
      const int rows = sequences_.end(s) - row < LANES ? sequences_.end(s) - row : LANES;
      const Times times = times_of(row, rows, head);
      int d = 0;
      for (; d + STATE_ROWS <= op_.head_dim; d += STATE_ROWS) advance<STATE_ROWS>(row, rows, head, d, times, state, to);
      for (; d < op_.head_dim; d++) advance<1>(row, rows, head, d, times, state, to);
    }
  }

  Times times_of(int row, int rows, int head) const {
    Times times{};
    for (int i = 0; i < rows; i++) times.step[i] = part_at(space_, op_.times, row + i)[head];
    floats step = softplus(load(times.step) + op_.step_bias[head]);
    step = step < op_.least ? broadcast(op_.least) : step > op_.most ? broadcast(op_.most) : step;
    store(times.step, step);
    store(times.kept, exponential(step * op_.decay[head]));
    return times;
  }

  // h = kept h + step x B, y = h C + skip x: R rows of the state, for all of these rows of the sequence.
  template <int R, class To>
  void advance(int row, int rows, int head, int first, const Times &times, float *state, const To &to) const {
    const int group = head / (op_.heads / op_.groups) * op_.width, at = head * op_.head_dim + first;
    float *own = state + static_cast<size_t>(first) * op_.width;
    for (int i = 0; i < rows; i++) {
      const float *x = part_at(space_, op_.mixed, row + i);
      const float *inputs = x + inner_ + group, *outputs = inputs + op_.groups * op_.width;
      const float kept = times.kept[i];
      floats sums[R]{};
      float added[R];
      for (int r = 0; r < R; r++) added[r] = x[at + r] * times.step[i];
      int n = 0;
      for (; n + LANES <= op_.width; n += LANES) {
        const floats in = load(inputs + n), out = load(outputs + n);
        for (int r = 0; r < R; r++) {
          float *h = own + static_cast<size_t>(r) * op_.width + n;
          const floats now = load(h) * kept + in * added[r];
          store(h, now);
          sums[r] += now * out;
        }
      }
      if (const int left = op_.width - n; left > 0) {
        const floats in = load_some(inputs + n, left), out = load_some(outputs + n, left);
        for (int r = 0; r < R; r++) {
          float *h = own + static_cast<size_t>(r) * op_.width + n;
          const floats now = load_some(h, left) * kept + in * added[r];
          store_some(h, now, left);
          sums[r] += now * out;
        }
      }
      auto *y = to(row + i) + at;
      for (int r = 0; r < R; r++) put(y + r, sum(sums[r]) + x[at + r] * op_.skip[head]);
    }
  }
};

}  // namespace PLIMSOLL_ISA
