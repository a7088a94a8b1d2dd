// The work on heads between the product and attention: norms, rotation, queries to operands, keys and values to the
// cache.
#pragma once

#include "normalise.h"
#include "paged.h"

namespace PLIMSOLL_ISA {

constexpr int MAX_HEAD = 1024;

// Rotates pairs of dimensions d and d + half; `turns` are half cosines, then half sines.
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

// Rotates pairs of neighbours: dimensions 2d and 2d + 1.
template <class E>
inline void turn_pairs(const float *x, const float *turns, int half, E *out) {
  for (int d = 0; d < half; d++) {
    put(out + 2 * d, x[2 * d] * turns[d] - x[2 * d + 1] * turns[half + d]);
    put(out + 2 * d + 1, x[2 * d + 1] * turns[d] + x[2 * d] * turns[half + d]);
  }
}

// The factor of a position's queries; see PlimsollHeads.
inline float grown(float growth, float every, int offset, int64_t position) {
  if (growth == 0) return 1;
  return 1.0f + growth * std::log1p(std::floor(static_cast<float>(position + offset) / every));
}

// The heads of one layer.
template <class T>
class Heads {
 public:
  using cached = typename T::cached;
  using operand = typename T::operand;

  Heads(const PlimsollHeads &op, const PlimsollStep &step, const Attention<T> &attention)
      : op_(op), step_(step), attention_(attention) {}

  int count() const { return op_.shape.heads + 2 * op_.shape.kv_heads; }

  // Processes head `head` of a row; `heads` has all heads of the row, and `queries` is the destination of its queries.
  void run(int row, int head, float *heads, operand *queries) const {
    const PlimsollShape &shape = op_.shape;
    const int dim = shape.head_dim, keys = shape.heads, values = keys + shape.kv_heads;
    float *x = heads + static_cast<size_t>(head) * dim;
    if (head >= values) {
      cached rounded[MAX_HEAD];
      for (int d = 0; d < dim; d += LANES) store(rounded + d, load(x + d));
      attention_.write_value(op_.layer, head - values, dim, row, rounded);
      return;
    }
    const int number = head < keys ? head : head - keys;
    const float *weight = head < keys ? op_.query_norm : op_.key_norm;
    if (weight) weight += static_cast<size_t>(number) * op_.norm_step;
    if (weight && !op_.turned) normalise(op_.norm, x, weight, nullptr, dim, op_.eps, Row<float>{x});
    // Prefetches the cache places of the row's keys and values while its queries are rotated.
    if (head < shape.kv_heads) attention_.prefetch(op_.layer, head, dim, row);
    if (head < keys) {
      operand *out = queries + static_cast<size_t>(head) * dim;
      op_.growth != 0 ? grow(x, weight, row, out) : finish(x, weight, row, out);
      return;
    }
    cached rounded[MAX_HEAD];
    finish(x, weight, row, rounded);
    attention_.write_key(op_.layer, number, dim, row, rounded);
  }

 private:
  const PlimsollHeads &op_;
  const PlimsollStep &step_;
  const Attention<T> &attention_;

  // Rotates a query and multiplies it by its position's factor.
  void grow(const float *x, const float *weight, int row, operand *out) const {
    float turned[MAX_HEAD];
    finish(x, weight, row, turned);
    const float factor = grown(op_.growth, op_.growth_every, op_.growth_offset, step_.positions[row]);
    int d = 0;
    for (; d + LANES <= op_.shape.head_dim; d += LANES) store(out + d, load(turned + d) * factor);
    for (; d < op_.shape.head_dim; d++) put(out + d, turned[d] * factor);
  }

  // The rotation, and a norm after it.
  template <class E>
  void finish(const float *x, const float *weight, int row, E *out) const {
    if (!weight || !op_.turned) return rotate(x, row, out);
    float turned[MAX_HEAD];
    rotate(x, row, turned);
    normalise(op_.norm, turned, weight, nullptr, op_.shape.head_dim, op_.eps, Row<E>{out});
  }

  template <class E>
  void rotate(const float *x, int row, E *out) const {
    int d = 0;
    if (op_.rope >= 0) {
      const float *turns = step_.turns[op_.rope] + static_cast<size_t>(step_.positions[row]) * op_.rotated;
      if (op_.pairs)
        turn_pairs(x, turns, op_.rotated / 2, out);
      else
        turn(x, turns, op_.rotated / 2, out);
      d = op_.rotated;
    }
    for (; d + LANES <= op_.shape.head_dim; d += LANES) store(out + d, load(x + d));
    for (; d < op_.shape.head_dim; d++) put(out + d, x[d]);
  }
};

}  // namespace PLIMSOLL_ISA
