// Attention of a tile of queries, with softmax computed as the keys go by (Milakov and Gimelshein, 2018; Dao et al., 2022).
// Attention of a tile of queries, with online softmax (Milakov and Gimelshein, 2018; Dao et al., 2022).
//
// Keys are processed in spans of SPAN tokens that begin at multiples of SPAN, so a row's result is the same alone, in a
// batch, and for any division of its prompt into chunks.
#pragma once

#include "cached.h"
#include "product.h"
#include "scores.h"

namespace PLIMSOLL_ISA {

constexpr int SPAN = 128;
constexpr int SUBS = SPAN / SUB;

// A row's running maximum and sum of weights, and the factor for its earlier sums. A sink precedes all keys.
struct Softmax {
  float maximum = -INFINITE, total = 0, factor = 1;

  void begin(float sink) {
    maximum = sink;
    total = sink == -INFINITE ? 0 : 1;
  }
};

// The keys that one row sees, and a test of LANES keys at a time for hidden ones.
struct Visible {
  int first, last;

  ints hides(int key) const {
    const ints keys = LANE_NUMBERS + key;
    return (keys < first) | (keys > last);
  }
};

// scores -> weights of one row over sub-blocks [begin, end). HIDING: some of their keys are hidden.
template <class T, bool HIDING>
inline void weigh(Softmax &row, float *scores, typename T::operand *weights, int begin, int end, int span,
                  const Visible &visible) {
  const int from = (begin - span * SUBS) * SUB, to = (end - span * SUBS) * SUB;
  floats highest = broadcast(-INFINITE);
  for (int i = from; i < to; i += LANES) {
    floats score = load(scores + i);
    if constexpr (HIDING) {
      score = visible.hides(span * SPAN + i) ? broadcast(-INFINITE) : score;
      store(scores + i, score);
    }
    highest = largest(highest, score);
  }
  const float now = maximum(highest);
  const float before = row.maximum;
  row.maximum = now > before ? now : before;
  if (row.maximum == -INFINITE) {  // every key so far is hidden
    for (int i = from; i < to; i += LANES) store(weights + i, floats{});
    row.factor = 1;
    return;
  }
  floats total{};
  for (int i = from; i < to; i += LANES) {
    const floats weight = exponential(load(scores + i) - row.maximum);
    total += weight;
    store(weights + i, weight);
  }
  // e^0 is 1, and e^-inf is 0: nothing was summed before the first visible key.
  row.factor = row.maximum == before ? 1 : before == -INFINITE ? 0 : exponential(broadcast(before - row.maximum))[0];
  row.total = row.total * row.factor + sum(total);
}

// Memory of one thread for a tile of queries.
template <class T>
struct TileMemory {
  int query_stride;
  typename T::operand *query;    // [ROWS, query_stride]
  float *sums;                   // [ROWS, head_dim]
  float *scores;                 // [ROWS, SPAN]
  typename T::operand *weights;  // [ROWS, SPAN]

  // Whole cache lines, and one more, so that no two threads share a line.
  static size_t bytes(int head_dim) {
    const size_t dims = static_cast<size_t>(ROWS) * head_dim, span = static_cast<size_t>(ROWS) * SPAN;
    const size_t queries = static_cast<size_t>(ROWS) * stride_of(head_dim);
    return ((dims + span) * sizeof(float) + (queries + span) * sizeof(typename T::operand) + 127) / 64 * 64;
  }

  TileMemory(char *memory, int head_dim) : query_stride(stride_of(head_dim)) {
    const size_t dims = static_cast<size_t>(ROWS) * head_dim, span = static_cast<size_t>(ROWS) * SPAN;
    sums = reinterpret_cast<float *>(memory);
    scores = sums + dims;
    weights = reinterpret_cast<typename T::operand *>(scores + span);
    query = weights + span;
  }

 private:
  // Steps of several words are read as whole cache lines.
  static int stride_of(int head_dim) { return T::STEP == 1 ? head_dim : static_cast<int>(padded<T>(head_dim)); }
};

// Attends `count` rows whose queries are in memory; afterwards memory.sums holds the results. `products` computes
//   score(span, begin, end): memory.scores of a span's sub-blocks [begin, end), scaled and capped,
//   accumulate(rows, span, begin, end, ahead): memory.sums = memory.sums x each row's factor + weights x values, and
//     prefetches the keys ahead[i] during the i-th sub-block.
template <class T, class Products>
inline void attend(const Products &products, int count, const TileMemory<T> &memory, const Reader<T> &reader,
                   const Window &window, int head_dim, const TileRow *tile, Upcoming<T> after) {
  Softmax rows[ROWS];
  Visible visible[ROWS];
  int lowest = tile[0].position, highest = tile[0].position;
  for (int r = 0; r < count; r++) {
    const int position = tile[r].position;
    lowest = position < lowest ? position : lowest;
    highest = position > highest ? position : highest;
    visible[r] = {window.first_key(position), window.last_key(position)};
    rows[r].begin(tile[r].sink);
  }
  const int last_first = window.first_key(highest);
  std::memset(memory.sums, 0, sizeof(float) * count * head_dim);
  const int first_sub = window.first_key(lowest) / SUB, last_sub = window.last_key(highest) / SUB;
  for (int span = first_sub / SUBS; span <= last_sub / SUBS; span++) {
    const int begin = span * SUBS > first_sub ? span * SUBS : first_sub;
    const int end = (span + 1) * SUBS < last_sub + 1 ? (span + 1) * SUBS : last_sub + 1;
    Upcoming<T> same{&reader, end, last_sub + 1};
    Upcoming<T> &upcoming = end <= last_sub ? same : after;
    const char *ahead[SUBS];
    for (int sub = begin; sub < end; sub++) ahead[sub - begin] = upcoming.take(reader.keys + reader.at(sub));
    products.score(span, begin, end);
    const bool whole = end * SUB - 1 <= window.last_key(lowest) && last_first <= begin * SUB;
    for (int r = 0; r < count; r++) {
      float *scores = memory.scores + r * SPAN;
      typename T::operand *weights = memory.weights + r * SPAN;
      if (window.sloped)
        add_slope(window, tile[r], scores, (begin - span * SUBS) * SUB, (end - span * SUBS) * SUB, span * SPAN);
      if (whole)
        weigh<T, false>(rows[r], scores, weights, begin, end, span, visible[r]);
      else
        weigh<T, true>(rows[r], scores, weights, begin, end, span, visible[r]);
    }
    products.accumulate(rows, span, begin, end, ahead);
  }
  for (int r = 0; r < count; r++) {
    const float share = 1.0f / rows[r].total;
    for (int d = 0; d < head_dim; d += LANES)
      store(memory.sums + r * head_dim + d, load(memory.sums + r * head_dim + d) * share);
  }
}

}  // namespace PLIMSOLL_ISA
