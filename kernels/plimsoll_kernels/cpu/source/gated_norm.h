// Root mean square norms of groups of columns, with a gate before or after the norm.
#pragma once

#include "columns.h"

namespace PLIMSOLL_ISA {

template <class T>
class GatedNorm {
 public:
  GatedNorm(const PlimsollGatedNorm &op, const Workspace<T> &space)
      : op_(op), width_(op.width / op.groups), space_(space) {}

  void run(const Crew &crew, int rows) const {
    const int few = FEW_VALUES / width_;
    with_target(space_, op_.target, [&](const auto &to) {
      crew.each(rows * op_.groups, few > 1 ? few : 1, [&](int begin, int end, int) {
        for (int item = begin; item < end; item++) {
          const int row = item / op_.groups, first = item % op_.groups * width_;
          const float *x = part_at(space_, op_.source, row) + first, *gate = part_at(space_, op_.gate, row) + first;
          op_.after ? norm<true>(x, gate, op_.weight + first, to(row) + first)
                    : norm<false>(x, gate, op_.weight + first, to(row) + first);
        }
      });
    });
  }

 private:
  // A number of values that is too small to give to another thread.
  static constexpr int FEW_VALUES = 4096;

  const PlimsollGatedNorm &op_;
  const int width_;
  const Workspace<T> &space_;

  template <bool AFTER, class To>
  void norm(const float *x, const float *gate, const float *weight, To *to) const {
    floats squares{};
    for (int i = 0; i < width_; i += LANES) {
      const floats v = normed<AFTER>(x + i, gate + i, width_ - i);
      squares += v * v;
    }
    const float scale = 1.0f / std::sqrt(sum(squares) / static_cast<float>(width_) + op_.eps);
    for (int i = 0; i < width_; i += LANES) {
      const int left = width_ - i;
      const floats v = normed<AFTER>(x + i, gate + i, left) * scale * load_some(weight + i, left);
      store_some(to + i, AFTER ? v * silu(load_some(gate + i, left)) : v, left);
    }
  }

  // The input of the norm.
  template <bool AFTER>
  static floats normed(const float *x, const float *gate, int left) {
    const floats v = load_some(x, left);
    return AFTER ? v : v * silu(load_some(gate, left));
  }
};

}  // namespace PLIMSOLL_ISA
