// Griffin's gated recurrence (De et al., 2024), row by row in float32: a sequence gives the same bits for any division
// into steps.
#pragma once

#include "activation.h"
#include "columns.h"

namespace PLIMSOLL_ISA {

// First the gates of all rows, which are products of blocks; then each column of each sequence.
template <class T>
class GatedRecurrence {
 public:
  GatedRecurrence(const PlimsollGatedRecurrence &op, const PlimsollStep &step, const Workspace<T> &space)
      : op_(op), block_(op.width / op.heads), sequences_{step}, space_(space) {}

  void run(const Crew &crew) const {
    const int tiles = (sequences_.step.rows + ROWS - 1) / ROWS, stripes = (block_ + LANES - 1) / LANES;
    const int few = FEW_INPUTS / block_;
    crew.each(op_.heads * stripes * tiles, few > 1 ? few : 1, [&](int begin, int end, int) {
      for (int item = begin; item < end; item++) {
        const int row = item % tiles * ROWS, stripe = item / tiles;
        const int rows = sequences_.step.rows - row, first = stripe % stripes * LANES;
        if (rows >= ROWS)
          open<ROWS>(row, stripe / stripes, first);
        else
          for (int r = 0; r < rows; r++) open<1>(row + r, stripe / stripes, first);
      }
    });
    const int blocks = (op_.width + LANES - 1) / LANES;
    with_target(space_, op_.target, [&](const auto &to) {
      crew.each(sequences_.step.sequences * blocks, sequences_.worth(FEW_BLOCKS), [&](int begin, int end, int) {
        for (int item = begin; item < end; item++) recur(item / blocks, item % blocks * LANES, to);
      });
    });
  }

 private:
  // Rows that share one reading of a block, and numbers of items that are too small to give to another thread.
  static constexpr int ROWS = 4, FEW_INPUTS = 1024, FEW_BLOCKS = 64;

  const PlimsollGatedRecurrence &op_;
  const int block_;
  const Sequences sequences_;
  const Workspace<T> &space_;

  // Both gates of R rows in LANES columns of a head.
  template <int R>
  void open(int row, int head, int first) const {
    const int left = block_ - first, column = head * block_ + first;
    const size_t block = static_cast<size_t>(head) * block_ * block_ + first;
    const float *x[R];
    for (int r = 0; r < R; r++) x[r] = part_at(space_, op_.source, row + r) + head * block_;
    floats recurrent[R]{}, inputs[R]{};
    for (int i = 0; i < block_; i++) {
      const size_t at = block + static_cast<size_t>(i) * block_;
      const floats forgets = load_some(op_.recurrent + at, left), lets_in = load_some(op_.inputs + at, left);
      for (int r = 0; r < R; r++) {
        recurrent[r] += forgets * x[r][i];
        inputs[r] += lets_in * x[r][i];
      }
    }
    for (int r = 0; r < R; r++) {
      float *gates = space_.floats_at(op_.gates, row + r) + column;
      store_gate(gates, recurrent[r], op_.recurrent_bias + column, left);
      store_gate(gates + op_.width, inputs[r], op_.inputs_bias + column, left);
    }
  }

  static void store_gate(float *to, floats sum, const float *bias, int left) {
    store_some(to, activated(PLIMSOLL_ACTIVATION_SIGMOID, sum + load_some(bias, left)), left);
  }

  // h = a h + root(1 - a^2) i x with a = e^(decay r); at a sequence's first token h = i x.
  template <class To>
  void recur(int s, int column, const To &to) const {
    const int left = op_.width - column;
    float *state = sequences_.template state<float>(op_.state, s, op_.width) + column;
    const floats decay = load_some(op_.decay + column, left);
    floats h = sequences_.is_new(s) ? floats{} : load_some(state, left);
    for (int row = sequences_.begin(s); row < sequences_.end(s); row++) {
      const float *gates = space_.floats_at(op_.gates, row) + column;
      const floats faded = decay * load_some(gates, left);
      floats added = load_some(part_at(space_, op_.source, row) + column, left) * load_some(gates + op_.width, left);
      if (sequences_.step.positions[row] != 0) added *= root(1.0f - exponential(faded + faded));
      h = h * exponential(faded) + added;
      store_some(to(row) + column, h, left);
    }
    store_some(state, h, left);
  }

  static floats root(floats x) {
#if LANES == 16
    return bits<floats>(_mm512_sqrt_ps(bits<__m512>(x)));
#else
    return bits<floats>(_mm256_sqrt_ps(bits<__m256>(x)));
#endif
  }
};

}  // namespace PLIMSOLL_ISA
