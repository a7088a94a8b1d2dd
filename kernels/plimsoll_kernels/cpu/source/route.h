// Selects the experts of each row and their weights, all in float32, because rounding two experts' scores to equal
// values would change the model.
#pragma once

#include "crew.h"
#include "interface.h"
#include "vector.h"

namespace PLIMSOLL_ISA {

using plimsoll::Crew;

// Rows of x and of the other side that are multiplied together: their sums fit into the registers.
constexpr int DOT_ROWS = 4, DOT_COLUMNS = LANES == 16 ? 4 : 2;
// Rows of either side that one thread takes at once.
constexpr int DOT_BLOCK = 16;

// out[r][c] = x row r times w row c, rows of `k` floats at the distance `x_apart` or `k`; all sums run in the same
// order.
template <int R, int C>
inline void dots(const float *x, size_t x_apart, const float *w, int k, float *out, size_t out_apart) {
  floats sums[R][C]{};
  int i = 0;
  for (; i + LANES <= k; i += LANES) {
    floats columns[C];
    for (int c = 0; c < C; c++) columns[c] = load(w + static_cast<size_t>(c) * k + i);
    for (int r = 0; r < R; r++) {
      const floats row = load(x + r * x_apart + i);
      for (int c = 0; c < C; c++) sums[r][c] += row * columns[c];
    }
  }
  for (int r = 0; r < R; r++)
    for (int c = 0; c < C; c++) {
      float total = sum(sums[r][c]);
      for (int rest = i; rest < k; rest++) total += x[r * x_apart + rest] * w[static_cast<size_t>(c) * k + rest];
      out[r * out_apart + c] = total;
    }
}

template <int R>
inline void dots_of_rows(const float *x, size_t x_apart, const float *w, int columns, int k, float *out,
                         size_t out_apart) {
  int c = 0;
  for (; c + DOT_COLUMNS <= columns; c += DOT_COLUMNS)
    dots<R, DOT_COLUMNS>(x, x_apart, w + static_cast<size_t>(c) * k, k, out + c, out_apart);
  for (; c < columns; c++) dots<R, 1>(x, x_apart, w + static_cast<size_t>(c) * k, k, out + c, out_apart);
}

// out [rows, columns] = x w^T in float32.
inline void all_dots(const float *x, size_t x_apart, int rows, const float *w, int columns, int k, float *out,
                     size_t out_apart) {
  int r = 0;
  for (; r + DOT_ROWS <= rows; r += DOT_ROWS)
    dots_of_rows<DOT_ROWS>(x + r * x_apart, x_apart, w, columns, k, out + r * out_apart, out_apart);
  for (; r < rows; r++) dots_of_rows<1>(x + r * x_apart, x_apart, w, columns, k, out + r * out_apart, out_apart);
}

inline float sigmoid(float x) { return 1.0f / (exponential(broadcast(-x))[0] + 1.0f); }

// Whether one score is above another; NaN is above all, so that it is noticed.
inline bool above(float one, float other) { return one > other || (one != one && other == other); }

// The numbers of the `count` highest of `size` values, the highest first, of equal ones the first.
inline void highest_of(const float *values, int size, int count, int32_t *numbers) {
  int found = 0;
  for (int i = 0; i < size; i++) {
    if (found == count && !above(values[i], values[numbers[count - 1]])) continue;
    int at = found < count ? found++ : count - 1;
    for (; at > 0 && above(values[i], values[numbers[at - 1]]); at--) numbers[at] = numbers[at - 1];
    numbers[at] = i;
  }
}

// One layer's selection of experts.
class Router {
 public:
  explicit Router(const PlimsollRoute &op)
      : op_(op), width_((op.experts + PLIMSOLL_WIDEST - 1) / PLIMSOLL_WIDEST * PLIMSOLL_WIDEST) {}

  // Computes the logits of rows of x, as the first part of each row of scores.
  void score(const Crew &crew, const float *x, size_t x_apart, int rows, float *scores, size_t apart) const {
    const int row_blocks = (rows + DOT_BLOCK - 1) / DOT_BLOCK, blocks = (op_.experts + DOT_BLOCK - 1) / DOT_BLOCK;
    crew.each(row_blocks * blocks, 1, [&](int begin, int end, int) {
      for (int item = begin; item < end; item++) {
        const int row = item / blocks * DOT_BLOCK, expert = item % blocks * DOT_BLOCK;
        all_dots(x + row * x_apart, x_apart, least(rows - row),
                 op_.weight + static_cast<size_t>(expert) * op_.hidden, least(op_.experts - expert), op_.hidden,
                 scores + row * apart + expert, apart);
      }
    });
  }

  // Selects experts by one row's logits, which are overwritten, as is the memory after them.
  void choose(float *scores, float *shares, int32_t *numbers) const {
    for (int e = 0; op_.bias && e < op_.experts; e++) scores[e] += op_.bias[e];
    for (int e = op_.experts; e < width_; e++) scores[e] = -INFINITE;
    if (op_.rule == PLIMSOLL_RULE_SPARSE_MIXER)
      mix_sparsely(scores, shares, numbers);
    else
      choose_highest(scores, shares, numbers);
  }

 private:
  const PlimsollRoute &op_;
  const int width_;

  static int least(int left) { return left < DOT_BLOCK ? left : DOT_BLOCK; }

  void choose_highest(float *scores, float *shares, int32_t *numbers) const {
    op_.rule == PLIMSOLL_RULE_SOFTMAX ? softmax(scores) : sigmoids(scores);
    const float *ranked = scores;
    if (op_.correction || op_.open_groups < op_.groups) {
      float *copy = scores + width_;
      for (int e = 0; e < op_.experts; e++) copy[e] = scores[e] + (op_.correction ? op_.correction[e] : 0.0f);
      if (op_.open_groups < op_.groups) close_groups(copy);
      ranked = copy;
    }
    highest_of(ranked, op_.experts, op_.chosen, numbers);
    float total = 0;
    for (int i = 0; i < op_.chosen; i++) total += shares[i] = scores[numbers[i]];
    const float divisor = !op_.renormalised ? 1.0f : total < op_.least ? op_.least : total;
    for (int i = 0; i < op_.chosen; i++) shares[i] = shares[i] / divisor * op_.scale;
  }

  void softmax(float *scores) const {
    floats most = load(scores);
    for (int e = LANES; e < width_; e += LANES) most = largest(most, load(scores + e));
    const float highest = maximum(most);
    floats sums{};
    for (int e = 0; e < width_; e += LANES) {
      const floats share = exponential(load(scores + e) - highest);
      store(scores + e, share);
      sums += share;
    }
    const float total = sum(sums);
    for (int e = 0; e < width_; e += LANES) store(scores + e, load(scores + e) / total);
  }

  void sigmoids(float *scores) const {
    for (int e = 0; e < width_; e += LANES) store(scores + e, 1.0f / (exponential(-load(scores + e)) + 1.0f));
  }

  // Sets scores in closed groups below all others. The memory after them is overwritten.
  void close_groups(float *ranked) const {
    const int size = op_.experts / op_.groups;
    float *of_groups = ranked + width_;
    int32_t *open = reinterpret_cast<int32_t *>(of_groups + width_);
    for (int g = 0; g < op_.groups; g++) {
      const float *own = ranked + g * size;
      highest_of(own, size, op_.best, open);
      of_groups[g] = 0;
      for (int i = 0; i < op_.best; i++) of_groups[g] += own[open[i]];
    }
    highest_of(of_groups, op_.groups, op_.open_groups, open);
    for (int g = 0; g < op_.groups; g++) {
      bool is_open = false;
      for (int i = 0; i < op_.open_groups; i++) is_open |= open[i] == g;
      for (int e = g * size; !is_open && e < (g + 1) * size; e++) ranked[e] = -INFINITE;
    }
  }

  // See SparseMixer of the runtime (Liu et al., 2024).
  void mix_sparsely(const float *logits, float *shares, int32_t *numbers) const {
    float *left = const_cast<float *>(logits) + width_;
    for (int e = 0; e < op_.experts; e++) left[e] = logits[e];
    for (int i = 0; i < op_.chosen; i++) {
      highest_of(left, op_.experts, 1, numbers + i);
      const float highest = left[numbers[i]];
      float total = 0;
      for (int e = 0; e < op_.experts; e++) {
        const float size = logits[e] < 0 ? -logits[e] : logits[e];
        const float behind = (highest - logits[e]) / (size > highest ? size : highest);
        if (!(behind > 2 * op_.jitter)) total += exponential(broadcast(left[e] - highest))[0];
      }
      shares[i] = 1.0f / total;
      left[numbers[i]] = -INFINITE;
    }
  }
};

}  // namespace PLIMSOLL_ISA
