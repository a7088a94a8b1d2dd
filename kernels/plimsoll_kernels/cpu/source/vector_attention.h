// Attention's products in vector registers, for as many rows as fit into them.
#pragma once

#include "attend.h"

namespace PLIMSOLL_ISA {

// The scores of one span's sub-blocks [begin, end): scale q k^T, capped. This function and the next are not inlined:
// within a larger function, registers of their loops would be spilled, which made attention of prompts 1.4 times as
// slow.
template <class T, int R, class Keys>
__attribute__((noinline)) void score(const TileMemory<T> &memory, const Keys &reader, const Window &window, int head_dim, int span,
                  int begin, int end) {
  constexpr int VECTORS = SUB / LANES; // of a sub-block's keys: 1 or 2
  for (int sub = begin; sub < end; sub += 2 / VECTORS) {
    floats sums[R][2];
    clear(sums);
    const auto *first = reader.keys + reader.at(sub);
    const auto *second = VECTORS == 2 ? first + LANES * T::PAIR : sub + 1 < end ? reader.keys + reader.at(sub + 1) : first;
    const typename T::cached *const columns[2] = {first, second};
    const Ahead<2> values = {{reader.values_of(sub), reader.values_of(sub + 1 < end ? sub + 1 : sub)}};
    multiply<T, R, 2>(sums, memory.query, head_dim, columns, SUB * T::PAIR, head_dim / T::PAIR, values);
    float *out = memory.scores + (sub - span * SUBS) * SUB;
    for (int r = 0; r < R; r++) {
      for (int v = 0; v < 2; v++) {
        if (VECTORS == 1 && v == 1 && sub + 1 >= end) break;
        store(out + r * SPAN + v * LANES, window.score(sums[r][v]));
      }
    }
  }
}

// sums = sums x factor + weights x values, V vectors of dimensions at a time. Prefetches the keys `ahead[i]` during the
// i-th sub-block.
template <class T, int R, int V>
__attribute__((noinline)) void accumulate(const TileMemory<T> &memory, const Reader<T> &reader, const Softmax *rows, int head_dim,
                       int dim, int span, int begin, int end, const char *const *ahead) {
  floats sums[R][V];
  for (int r = 0; r < R; r++)
    for (int v = 0; v < V; v++)
      sums[r][v] = load(memory.sums + r * head_dim + dim + v * LANES) * rows[r].factor;
  for (int sub = begin; sub < end; sub++) {
    const auto *values = reader.values + reader.at(sub) + static_cast<int64_t>(dim) * T::PAIR;
    const typename T::cached *columns[V];
    for (int v = 0; v < V; v++) columns[v] = values + v * LANES * T::PAIR;
    const auto *weights = memory.weights + (sub - span * SUBS) * SUB;
    const typename T::cached *const(&fixed)[V] = columns;
    // A product with V vectors of dimensions prefetches as much as it reads: 64 x V bytes of each word.
    const char *next = ahead[sub - begin] + static_cast<size_t>(dim) * SUB * sizeof(typename T::cached);
    constexpr int LINES = V * LANES * 4 / 64 > 0 ? V * LANES * 4 / 64 : 1;
    Ahead<LINES> keys;
    for (int i = 0; i < LINES; i++) keys.from[i] = next + static_cast<size_t>(i) * (SUB / T::PAIR) * 64;
    multiply<T, R, V>(sums, weights, SPAN, fixed, static_cast<size_t>(head_dim) * T::PAIR, SUB / T::PAIR, keys);
  }
  for (int r = 0; r < R; r++)
    for (int v = 0; v < V; v++) store(memory.sums + r * head_dim + dim + v * LANES, sums[r][v]);
}

// See attend().
template <class T, int R, class Keys>
struct VectorProducts {
  const TileMemory<T> &memory;
  const Reader<T> &reader;
  const Keys &keys;
  const Window &window;
  int head_dim, value_dim;

  void score(int span, int begin, int end) const {
    keys.each(begin, end, [&](int from, int to) {
      PLIMSOLL_ISA::score<T, R>(memory, keys, window, head_dim, span, from, to);
    });
  }
  void accumulate(const Softmax *rows, int span, int begin, int end, const char *const *ahead) const {
    int dim = 0;
    for (; dim + 2 * LANES <= value_dim; dim += 2 * LANES)
      PLIMSOLL_ISA::accumulate<T, R, 2>(memory, reader, rows, head_dim, dim, span, begin, end, ahead);
    if (dim < value_dim)
      PLIMSOLL_ISA::accumulate<T, R, 1>(memory, reader, rows, head_dim, dim, span, begin, end, ahead);
  }
};

// Called by a thread before it attends to tiles of at most so many rows.
template <class T>
void prepare_attention(int) {}

template <class T, class Keys, int R = ROWS>
void attend_rows(int count, const TileMemory<T> &memory, const Reader<T> &reader, const Keys &keys, const Window &window,
                 int head_dim, int value_dim, const TileRow *rows, const Upcoming<T> &after) {
  if constexpr (R >= 1) {
    if (count == R) {
      const VectorProducts<T, R, Keys> products{memory, reader, keys, window, head_dim, value_dim};
      return attend<T>(products, count, memory, reader, window, head_dim, rows, after);
    }
    attend_rows<T, Keys, R - 1>(count, memory, reader, keys, window, head_dim, value_dim, rows, after);
  }
}

}  // namespace PLIMSOLL_ISA
