// What is done to heads between the product and attention: norms, the rotation, queries to operands, keys and values to
// the cache.
#pragma once

#include "normalise.h"
#include "paged.h"

namespace PLIMSOLL_ISA {

constexpr int MAX_HEAD = 1024;

// Dimension d turns with dimension d + half; `turns` are half cosines, then half sines.
template <class E>
inline void turn(const float *x, const float *turns, int half, E *out) {
  int d = 0;
  for (; d + LANES <= half; d += LANES) {
    const floats first = load(x + d), second = load(x + half + d);
    const floats cosine = load(turns + d), sine = load(turns + half + d);
    store(out + d, first * cosine - second * sine);
    store(out + half + d, second * cosine + first * sine);
  }
  for (; d < half; d++) {
    put(out + d, x[d] * turns[d] - x[half + d] * turns[half + d]);
    put(out + half + d, x[half + d] * turns[d] + x[d] * turns[half + d]);
  }
}

// The heads of one layer.
template <class T>
class Heads {
 public:
  using element = typename T::element;
  using operand = typename T::operand;

  Heads(const PlimsollHeads &op, const PlimsollStep &step, const Attention<T> &attention)
      : op_(op), step_(step), attention_(attention) {}

  int count() const { return op_.shape.heads + 2 * op_.shape.kv_heads; }

  // Head `head` of a row, of which `heads` are all and `queries` where its queries go.
  void run(int row, int head, float *heads, operand *queries) const {
    const PlimsollShape &shape = op_.shape;
    const int dim = shape.head_dim, half = dim / 2, keys = shape.heads, values = keys + shape.kv_heads;
    float *x = heads + static_cast<size_t>(head) * dim;
    if (head >= values) {
      element rounded[MAX_HEAD];
      for (int d = 0; d < dim; d += LANES) store(rounded + d, load(x + d));
      attention_.write_value(op_.layer, head - values, dim, row, rounded);
      return;
    }
    const float *weight = head < keys ? op_.query_norm : op_.key_norm;
    if (weight) normalise(x, weight, dim, op_.eps, Row<float>{x});
    const float *turns = step_.turns[op_.rope] + static_cast<size_t>(step_.positions[row]) * dim;
    // While a row's queries turn, the places for its keys and values come in.
    if (head < shape.kv_heads) attention_.prefetch(op_.layer, head, dim, row);
    if (head < keys) {
      turn(x, turns, half, queries + static_cast<size_t>(head) * dim);
      return;
    }
    element rounded[MAX_HEAD];
    turn(x, turns, half, rounded);
    attention_.write_key(op_.layer, head - keys, dim, row, rounded);
  }

 private:
  const PlimsollHeads &op_;
  const PlimsollStep &step_;
  const Attention<T> &attention_;
};

}  // namespace PLIMSOLL_ISA
