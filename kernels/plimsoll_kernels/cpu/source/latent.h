// Latent attention's ops apart from attention itself: latent vectors to the cache, queries compared with them, and
// values of the results.
#pragma once

#include "heads.h"
#include "results.h"
#include "workspace.h"

namespace PLIMSOLL_ISA {

// Rows of all heads' operands or results, with heads at the distance `apart`.
template <class E>
struct HeadRows {
  E *first;
  size_t stride, apart;

  E *at(int row, int head) const { return first + row * stride + head * apart; }
};

// y = x W^T for each head, whose packed weights [columns, inputs] are stored one after the other.
template <class T>
inline void multiply_heads(const Crew &crew, int rows, int heads, const void *weight, int columns, int inputs,
                           const HeadRows<const typename T::operand> &x, const HeadRows<typename T::operand> &y) {
  const int count = panels(columns), most = chunk_rows<T>(x.stride), parts = (rows + most - 1) / most;
  const size_t size = panel_elements<T>(inputs);
  crew.each(heads * parts * count, 1, [&](int begin, int end, int) {
    for (int item = begin; item < end;) {
      const int group = item / count, first = item % count, head = group / parts, row = group % parts * most;
      const int last = count - first < end - item ? count : first + end - item;
      const auto *own = static_cast<const typename T::weight *>(weight) + head * count * size;
      multiply_range<T>(x.at(row, head), x.stride, rows - row < most ? rows - row : most, own, inputs, first, last,
                        own + last * size,
                        ToOperands<T>{y.at(row, head), y.stride, nullptr, columns, PLIMSOLL_ACTIVATION_NONE});
      item += last - first;
    }
  });
}

template <class T>
class Latents {
 public:
  using cached = typename T::cached;
  using operand = typename T::operand;

  Latents(const PlimsollStep &step, const Workspace<T> &space, const Crew &crew, const Attention<T> &attention)
      : step_(step), space_(space), crew_(crew), attention_(attention) {}

  void write(const PlimsollLatent &op) const {
    PlimsollShape shape{};
    shape.kv_heads = 1;
    shape.head_dim = op.rank + op.turned;
    crew_.each(step_.rows, FEW_ROWS, [&](int begin, int end, int) {
      for (int row = begin; row < end; row++) {
        const float *x = space_.floats_at(op.source, row);
        cached vector[MAX_HEAD];
        normalise(op.norm, x, op.weight, nullptr, op.rank, op.eps, Row<cached>{vector});
        rotate(x + op.rank, row, op.rope, op.turned, op.pairs, vector + op.rank);
        attention_.write_value(op.layer, 0, shape.head_dim, row, vector);
      }
    });
    for (int s = 0; s < step_.sequences; s++) attention_.clear_fresh(op.layer, shape, s);
  }

  void absorb(const PlimsollAbsorb &op) const {
    const HeadRows<operand> between = heads_at(op.between, op.apart), out = heads_at(op.target, op.rank + op.turned);
    crew_.each(step_.rows * op.heads, FEW_HEADS, [&](int begin, int end, int) {
      for (int item = begin; item < end; item++) {
        const int row = item / op.heads, head = item % op.heads;
        const float *x = space_.floats_at(op.source, row) + static_cast<size_t>(head) * (op.plain + op.turned);
        const float factor = grown(op.growth, op.growth_every, op.growth_offset, step_.positions[row]);
        operand *plain = between.at(row, head);
        for (int i = 0; i < op.plain; i++) put(plain + i, x[i] * factor);
        for (int i = op.plain; i < op.apart; i++) plain[i] = operand{};
        float turning[MAX_HEAD];
        for (int i = 0; i < op.turned; i++) turning[i] = x[op.plain + i] * factor;
        rotate(turning, row, op.rope, op.turned, op.pairs, out.at(row, head) + op.rank);
      }
    });
    multiply_heads<T>(crew_, step_.rows, op.heads, op.weight, op.rank, op.plain,
                      {between.first, between.stride, between.apart}, out);
  }

  void expand(const PlimsollExpand &op) const {
    const HeadRows<operand> x = heads_at(op.source, op.apart);
    multiply_heads<T>(crew_, step_.rows, op.heads, op.weight, op.value, op.rank, {x.first, x.stride, x.apart},
                      heads_at(op.target, op.value));
  }

 private:
  // Numbers of items that are too small to give to another thread.
  static constexpr int FEW_ROWS = 4, FEW_HEADS = 16;

  const PlimsollStep &step_;
  const Workspace<T> &space_;
  const Crew &crew_;
  const Attention<T> &attention_;

  HeadRows<operand> heads_at(int place, int apart) const {
    return {space_.operands_at(place), space_.stride(place), static_cast<size_t>(apart)};
  }

  template <class E>
  void rotate(const float *x, int row, int rope, int turned, int pairs, E *out) const {
    const float *turns = step_.turns[rope] + static_cast<size_t>(step_.positions[row]) * turned;
    pairs ? turn_pairs(x, turns, turned / 2, out) : turn(x, turns, turned / 2, out);
  }
};

}  // namespace PLIMSOLL_ISA
