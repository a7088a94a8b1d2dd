// Experts: rows are grouped by their chosen experts, and each expert multiplies its rows together.
//
// Experts' results are added to a row in the order of experts' numbers, whichever threads compute them and whatever
// other rows there are: a row's result does not depend on its batch or the number of threads.
#pragma once

#include "results.h"

namespace PLIMSOLL_ISA {

// Rows of values at a fixed distance.
template <class E>
struct Rows {
  E *first;
  size_t stride;

  E *at(int row) const { return first + row * stride; }
};

// Rows of one expert that are multiplied together; `first` is their index among all grouped rows.
struct ExpertRows {
  int32_t expert, first, rows;
};

// The memory of a step of experts: for each row and each expert that it has chosen a row of operands, the gated result,
// the expert's number and share; and, by expert, the grouped rows.
template <class T>
struct ExpertMemory {
  using operand = typename T::operand;

  operand *taken, *opened;
  int32_t *rows, *firsts;
  float *shares;
  ExpertRows *parts;

  // The most memory that any of these ops needs.
  template <class Take>
  static ExpertMemory of(const PlimsollModel &model, int rows, const Take &take) {
    size_t taken = 0, opened = 0, items = 0, experts = 0;
    for (int i = 0; i < model.num_ops; i++) {
      if (model.ops[i].kind != PLIMSOLL_KIND_EXPERTS) continue;
      const PlimsollExperts &op = model.ops[i].experts;
      const size_t own = static_cast<size_t>(rows) * op.chosen;
      taken = more(taken, own * padded<T>(op.gate_up.inputs));
      opened = more(opened, own * padded<T>(op.down.inputs));
      items = more(items, own);
      experts = more(experts, op.experts);
    }
    ExpertMemory memory;
    memory.taken = reinterpret_cast<operand *>(take(taken * sizeof(operand)));
    memory.opened = reinterpret_cast<operand *>(take(opened * sizeof(operand)));
    memory.rows = reinterpret_cast<int32_t *>(take(items * sizeof(int32_t)));
    memory.firsts = reinterpret_cast<int32_t *>(take((experts + 1) * sizeof(int32_t)));
    memory.shares = reinterpret_cast<float *>(take(items * sizeof(float)));
    memory.parts = reinterpret_cast<ExpertRows *>(take((experts + items) * sizeof(ExpertRows)));
    return memory;
  }

 private:
  static size_t more(size_t a, size_t b) { return a > b ? a : b; }
};

// out[rows[r]] += (the sums + bias) x shares[r].
struct ToShares {
  Rows<float> out;
  const int32_t *rows;
  const float *shares, *bias;
  int columns;

  struct Panel {
    const ToShares *to;
    int panel;

    void prefetch(int row, int rows) const {
      for (int r = row; r < row + rows; r++) prefetch_rows(at(r, panel * PANEL), 0, 1, PANEL);
    }
    template <int R>
    void operator()(int row, const floats (&sums)[R][2]) const {
      struct {
        const Panel &panel;
        int row;
        void operator()(int r, int i, floats v) const {
          float *at = panel.at(row + r, i);
          store(at, load(at) + v * panel.to->shares[row + r]);
        }
        void operator()(int r, int i, float v) const { *panel.at(row + r, i) += v * panel.to->shares[row + r]; }
      } out{*this, row};
      spread<R>(sums, to->bias, panel * PANEL, to->columns, out);
    }
    float *at(int row, int column) const { return to->out.at(to->rows[row]) + column; }
  };

  Panel operator()(int panel) const { return {this, panel}; }
};

// One layer's experts, for one step.
template <class T>
class Experts {
 public:
  using operand = typename T::operand;
  using weight = typename T::weight;

  Experts(const PlimsollExperts &op, int rows, const Crew &crew, const ExpertMemory<T> &memory)
      : op_(op),
        rows_(rows),
        crew_(crew),
        memory_(memory),
        hidden_(op.gate_up.inputs),
        inner_(op.down.inputs),
        taken_stride_(padded<T>(hidden_)),
        opened_stride_(padded<T>(inner_)) {}

  // x and `out` have the width of hidden states; shares and numbers have one entry for each chosen expert of a row.
  void run(Rows<const float> x, Rows<const float> shares, Rows<const int32_t> numbers, Rows<float> out) {
    put_together(shares, numbers);
    take(x, out);
    if (op_.gated)
      open(gated_panels(inner_), [&](const ExpertRows &own, const float *bias) {
        return ToGated<T>{opened(own), opened_stride_, bias, inner_, op_.activation, op_.alpha, op_.limit};
      });
    else
      open(panels(inner_), [&](const ExpertRows &own, const float *bias) {
        return ToOperands<T>{opened(own), opened_stride_, bias, inner_, op_.activation};
      });
    close(out);
  }

 private:
  // A number of rows that is too small to give to another thread.
  static constexpr int FEW_ROWS = 4;
  // Parts of an even share of the panels: with more, the same rows are read more often; with fewer, threads wait.
  static constexpr int SHARES = 4;

  const PlimsollExperts &op_;
  const int rows_;
  const Crew &crew_;
  const ExpertMemory<T> &memory_;
  const int hidden_, inner_;
  const size_t taken_stride_, opened_stride_;
  int parts_ = 0;

  // Groups rows by expert, and divides each expert's rows into parts that fit into a cache.
  void put_together(Rows<const float> shares, Rows<const int32_t> numbers) {
    int32_t *firsts = memory_.firsts;
    for (int e = 0; e <= op_.experts; e++) firsts[e] = 0;
    for (int r = 0; r < rows_; r++)
      for (int i = 0; i < op_.chosen; i++) firsts[numbers.at(r)[i] + 1]++;
    const int most = chunk_rows<T>(taken_stride_);
    for (int e = 0; e < op_.experts; e++) {
      const int count = firsts[e + 1], parts = (count + most - 1) / most;
      for (int p = 0; p < parts; p++) {
        const int begin = part_begin(count, parts, p);
        memory_.parts[parts_++] = {e, firsts[e] + begin, part_begin(count, parts, p + 1) - begin};
      }
      firsts[e + 1] += firsts[e];
    }
    // From here on, `firsts` is the index of each expert's next row.
    for (int r = 0; r < rows_; r++)
      for (int i = 0; i < op_.chosen; i++) {
        const int at = firsts[numbers.at(r)[i]]++;
        memory_.rows[at] = r;
        memory_.shares[at] = op_.weighs_inputs ? shares.at(r)[i] : shares.at(r)[i] * op_.scale;
      }
  }

  static int part_begin(int count, int parts, int part) {
    return static_cast<int>(static_cast<int64_t>(count) * part / parts);
  }

  // Copies rows as operands; padding after them is finite.
  void take(Rows<const float> x, Rows<float> out) const {
    crew_.each(rows_ * op_.chosen, FEW_ROWS, [&](int begin, int end, int) {
      for (int i = begin; i < end; i++) {
        operand *to = memory_.taken + i * taken_stride_, *opened = memory_.opened + i * opened_stride_;
        if (op_.weighs_inputs)
          weigh(x.at(memory_.rows[i]), memory_.shares + i, to);
        else
          convert(x.at(memory_.rows[i]), to, hidden_);
        for (size_t at = hidden_; at < taken_stride_; at++) to[at] = operand{};
        for (size_t at = inner_; at < opened_stride_; at++) opened[at] = operand{};
      }
    });
    if (op_.adds) return;
    crew_.each(rows_, FEW_ROWS, [&](int begin, int end, int) {
      for (int r = begin; r < end; r++) std::memset(out.at(r), 0, sizeof(float) * hidden_);
    });
  }

  // Multiplies a row by its share, and replaces the share, which is then applied, by the op's scale.
  void weigh(const float *x, float *share, operand *to) const {
    int i = 0;
    for (; i + LANES <= hidden_; i += LANES) store(to + i, load(x + i) * *share);
    for (; i < hidden_; i++) put(to + i, x[i] * *share);
    *share = op_.scale;
  }

  operand *opened(const ExpertRows &own) const { return memory_.opened + own.first * opened_stride_; }

  // Computes the first product of each expert's rows, with bias, in `count` panels, in the order of weights in memory;
  // `to` stores it.
  template <class To>
  void open(int count, const To &to) const {
    const size_t size = panel_elements<T>(hidden_);
    const int outputs = op_.gated ? 2 * inner_ : inner_;
    crew_.each(parts_ * count, 1, [&](int begin, int end, int) {
      for (int item = begin; item < end;) {
        const int part = item / count, first = item % count;
        const int last = count - first < end - item ? count : first + end - item;
        const ExpertRows &own = memory_.parts[part];
        const weight *from = weight_of(op_.gate_up, own.expert, count * size);
        const weight *then = last < count         ? from + last * size
                             : part + 1 < parts_ ? weight_of(op_.gate_up, memory_.parts[part + 1].expert, count * size)
                                                 : nullptr;
        multiply_range<T>(memory_.taken + own.first * taken_stride_, taken_stride_, own.rows, from, hidden_, first, last,
                          then, to(own, bias_of(op_.gate_up, own.expert, outputs)));
        item += last - first;
      }
    });
  }

  // The down product: each thread has columns of its own, so that several experts can add to one row.
  void close(Rows<float> out) const {
    const int count = panels(hidden_);
    const size_t size = panel_elements<T>(inner_);
    const int fair = count / (crew_.threads() * SHARES);
    crew_.each(count, fair > 1 ? fair : 1, [&](int begin, int end, int) {
      for (int part = 0; part < parts_; part++) {
        const ExpertRows &own = memory_.parts[part];
        const weight *then = part + 1 < parts_
                                 ? weight_of(op_.down, memory_.parts[part + 1].expert, count * size) + begin * size
                                 : nullptr;
        multiply_range<T>(opened(own), opened_stride_, own.rows, weight_of(op_.down, own.expert, count * size), inner_,
                          begin, end, then,
                          ToShares{out, memory_.rows + own.first, memory_.shares + own.first,
                                   bias_of(op_.down, own.expert, hidden_), hidden_});
      }
    });
  }

  static const weight *weight_of(const PlimsollLinear &linear, int expert, size_t size) {
    return static_cast<const weight *>(linear.weight) + expert * size;
  }
  static const float *bias_of(const PlimsollLinear &linear, int expert, size_t size) {
    return linear.bias ? linear.bias + expert * size : nullptr;
  }
};

}  // namespace PLIMSOLL_ISA
