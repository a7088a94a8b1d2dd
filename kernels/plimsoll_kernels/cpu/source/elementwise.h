// Ops on columns of each row separately: factors and gates.
#pragma once

#include "activation.h"
#include "columns.h"

namespace PLIMSOLL_ISA {

template <class To>
inline void scale_row(const float *x, const float *factors, int width, To *to) {
  for (int i = 0; i < width; i += LANES) {
    const floats v = load_some(x + i, width - i);
    store_some(to + i, factors ? v * load_some(factors + i, width - i) : v, width - i);
  }
}

template <class From, class To>
inline void multiply_row(const From *x, const float *gate, int activation, int width, To *to) {
  for (int i = 0; i < width; i += LANES) {
    const floats opened = activated(activation, load_some(gate + i, width - i));
    store_some(to + i, load_some(x + i, width - i) * opened, width - i);
  }
}

template <class T>
inline void scale(const PlimsollScale &op, const Workspace<T> &space, int row) {
  with_target(space, op.target,
              [&](const auto &to) { scale_row(part_at(space, op.source, row), op.factors, op.width, to(row)); });
}

template <class T>
inline void multiply(const PlimsollMultiply &op, const Workspace<T> &space, int row) {
  const float *gate = part_at(space, op.gate, row);
  with_target(space, op.target, [&](const auto &to) {
    if (space.has_operands(op.source.place))
      multiply_row(space.operands_at(op.source.place, row) + op.source.first, gate, op.activation, op.width, to(row));
    else
      multiply_row(part_at(space, op.source, row), gate, op.activation, op.width, to(row));
  });
}

}  // namespace PLIMSOLL_ISA
