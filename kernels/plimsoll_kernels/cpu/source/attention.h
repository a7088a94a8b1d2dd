// Attention over the paged cache, a tile of queries at a time, with softmax computed as the keys go by (Milakov and
// Gimelshein, 2018; Dao et al., 2022).
//
// The cache keeps SUB tokens together in the shape that products read: keys [head_dim / PAIR][SUB] words, values
// [SUB / PAIR][head_dim] words. A block holds block_size / SUB of those. Keys are taken in spans of SPAN tokens that
// begin at multiples of SPAN, so that a row's result is the same alone, in a batch, and in whatever chunks its prompt
// was cut.
#pragma once

#include "interface.h"
#include "product.h"

namespace PLIMSOLL_ISA {

constexpr int SUB = 16;
constexpr int SPAN = 128;
constexpr int SUBS = SPAN / SUB;

// Where one token's key and value begin, and how their elements are spaced.
template <class T>
struct Place {
  typename T::element *keys, *values;

  Place(const PlimsollCache &cache, int layer, int head, int head_dim, int64_t slot) {
    const int64_t block = slot / cache.block_size, offset = slot % cache.block_size;
    const int64_t base = head * cache.head_strides[layer] + block * cache.block_strides[layer] +
                         offset / SUB * (static_cast<int64_t>(SUB) * head_dim);
    const int in = static_cast<int>(offset % SUB);
    keys = static_cast<typename T::element *>(cache.keys[layer]) + base + in * T::PAIR;
    values = static_cast<typename T::element *>(cache.values[layer]) + base +
             static_cast<int64_t>(in / T::PAIR) * head_dim * T::PAIR + in % T::PAIR;
  }

  void write_key(const typename T::element *from, int head_dim) const {
    for (int d = 0; d < head_dim; d += T::PAIR)
      std::memcpy(keys + static_cast<size_t>(d) * SUB, from + d, sizeof(typename T::element) * T::PAIR);
  }
  void write_value(const typename T::element *from, int head_dim) const {
    for (int d = 0; d < head_dim; d++) values[d * T::PAIR] = from[d];
  }
  // Its lines are scattered over the whole sub-block, and stores wait for one after the other.
  void prefetch(int head_dim) const {
    for (int d = 0; d < head_dim; d += T::PAIR) prefetch_to_write(keys + static_cast<size_t>(d) * SUB);
    constexpr int LINE = 64 / sizeof(typename T::element) / T::PAIR;
    for (int d = 0; d < head_dim; d += LINE) prefetch_to_write(values + d * T::PAIR);
  }
  void clear_value(int head_dim) const {
    for (int d = 0; d < head_dim; d++) values[d * T::PAIR] = typename T::element{};
  }
};

// A sequence's blocks of one layer and head.
template <class T>
struct Reader {
  const typename T::element *keys, *values;
  const int32_t *blocks;
  int subs_per_block;
  int64_t block_elements, sub_elements;

  Reader(const PlimsollCache &cache, int layer, int head, int head_dim, const int32_t *table)
      : blocks(table),
        subs_per_block(cache.block_size / SUB),
        block_elements(cache.block_strides[layer]),
        sub_elements(static_cast<int64_t>(SUB) * head_dim) {
    const int64_t base = head * cache.head_strides[layer];
    keys = static_cast<const typename T::element *>(cache.keys[layer]) + base;
    values = static_cast<const typename T::element *>(cache.values[layer]) + base;
  }

  const char *values_of(int sub) const { return reinterpret_cast<const char *>(values + at(sub)); }

  int64_t at(int sub) const {
    return blocks[sub / subs_per_block] * block_elements + sub % subs_per_block * sub_elements;
  }
};

// Keys that will be read next: sub-blocks lie anywhere, so the processor cannot guess where the next one begins, and
// asked for all at once they would queue up. Each product with values fetches the keys of one.
template <class T>
struct Upcoming {
  const Reader<T> *reader = nullptr;
  int next = 0, end = 0;

  const char *take(const typename T::element *otherwise) {
    return reinterpret_cast<const char *>(next < end ? reader->keys + reader->at(next++) : otherwise);
  }
};

// What the rows of a tile share. Row r stands at position[r]; `query` is [R, head_dim] operands.
struct Window {
  int size;  // 0: all
  float scale, softcap;

  int first_key(int position) const { return size > 0 && position >= size ? position - size + 1 : 0; }
};

// Memory of one thread for a tile.
template <class T>
struct TileMemory {
  typename T::operand *query;    // [ROWS, head_dim]
  float *sums;                   // [ROWS, head_dim]
  float *scores;                 // [ROWS, SPAN]
  typename T::operand *weights;  // [ROWS, SPAN]

  // Whole cache lines, and one more: no two threads share one.
  static size_t bytes(int head_dim) {
    const size_t dims = static_cast<size_t>(ROWS) * head_dim, span = static_cast<size_t>(ROWS) * SPAN;
    return ((dims + span) * (sizeof(float) + sizeof(typename T::operand)) + 127) / 64 * 64;
  }

  TileMemory(char *memory, int head_dim) {
    const size_t dims = static_cast<size_t>(ROWS) * head_dim, span = static_cast<size_t>(ROWS) * SPAN;
    sums = reinterpret_cast<float *>(memory);
    scores = sums + dims;
    query = reinterpret_cast<typename T::operand *>(scores + span);
    weights = query + dims;
  }
};

// The scores of one span's sub-blocks [begin, end): scale q k^T, capped.
template <class T, int R>
inline void score(const TileMemory<T> &memory, const Reader<T> &reader, const Window &window, int head_dim, int span,
                  int begin, int end) {
  constexpr int VECTORS = SUB / LANES;  // of a sub-block's keys: 1 or 2
  for (int sub = begin; sub < end; sub += 2 / VECTORS) {
    floats sums[R][2];
    clear(sums);
    const auto *first = reader.keys + reader.at(sub);
    const auto *second = VECTORS == 2 ? first + LANES * T::PAIR : sub + 1 < end ? reader.keys + reader.at(sub + 1) : first;
    const typename T::element *const columns[2] = {first, second};
    const Ahead<2> values = {{reader.values_of(sub), reader.values_of(sub + 1 < end ? sub + 1 : sub)}};
    multiply<T, R, 2>(sums, memory.query, head_dim, columns, SUB * T::PAIR, head_dim / T::PAIR, values);
    float *out = memory.scores + (sub - span * SUBS) * SUB;
    for (int r = 0; r < R; r++) {
      for (int v = 0; v < 2; v++) {
        if (VECTORS == 1 && v == 1 && sub + 1 >= end) break;
        floats s = sums[r][v] * window.scale;
        if (window.softcap > 0) s = window.softcap * hyperbolic_tangent(s / window.softcap);
        store(out + r * SPAN + v * LANES, s);
      }
    }
  }
}

// A row's running maximum and sum of weights, and what to multiply its earlier sums by.
struct Softmax {
  float maximum = -INFINITE, total = 0, factor = 1;
};

// The keys that one row sees, and so many lanes at a time which of them it does not.
struct Visible {
  int first, last;

  ints hides(int key) const {
    const ints keys = LANE_NUMBERS + key;
    return (keys < first) | (keys > last);
  }
};

// scores -> weights of one row over sub-blocks [begin, end). HIDING: some of the keys there are not visible.
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
  // e^0 is 1, and e^-inf is 0: before the first visible key nothing was summed.
  row.factor = row.maximum == before ? 1 : before == -INFINITE ? 0 : exponential(broadcast(before - row.maximum))[0];
  row.total = row.total * row.factor + sum(total);
}

// sums = sums x factor + weights x values, V vectors of dimensions at a time. `ahead[i]` are the keys to fetch beside
// the i-th sub-block.
template <class T, int R, int V>
inline void accumulate(const TileMemory<T> &memory, const Reader<T> &reader, const Softmax (&rows)[R], int head_dim,
                       int dim, int span, int begin, int end, const char *const *ahead) {
  floats sums[R][V];
  for (int r = 0; r < R; r++)
    for (int v = 0; v < V; v++)
      sums[r][v] = load(memory.sums + r * head_dim + dim + v * LANES) * rows[r].factor;
  for (int sub = begin; sub < end; sub++) {
    const auto *values = reader.values + reader.at(sub) + static_cast<int64_t>(dim) * T::PAIR;
    const typename T::element *columns[V];
    for (int v = 0; v < V; v++) columns[v] = values + v * LANES * T::PAIR;
    const auto *weights = memory.weights + (sub - span * SUBS) * SUB;
    const typename T::element *const(&fixed)[V] = columns;
    // A product with V vectors of dimensions has as much to fetch as it reads: 64 x V bytes of each word.
    const char *next = ahead[sub - begin] + static_cast<size_t>(dim) * SUB * sizeof(typename T::element);
    constexpr int LINES = V * LANES * 4 / 64 > 0 ? V * LANES * 4 / 64 : 1;
    Ahead<LINES> keys;
    for (int i = 0; i < LINES; i++) keys.from[i] = next + static_cast<size_t>(i) * (SUB / T::PAIR) * 64;
    multiply<T, R, V>(sums, weights, SPAN, fixed, static_cast<size_t>(head_dim) * T::PAIR, SUB / T::PAIR, keys);
  }
  for (int r = 0; r < R; r++)
    for (int v = 0; v < V; v++) store(memory.sums + r * head_dim + dim + v * LANES, sums[r][v]);
}

// Attends R rows whose queries are in memory; afterwards memory.sums holds the results.
template <class T, int R>
void attend(const TileMemory<T> &memory, const Reader<T> &reader, const Window &window, int head_dim,
            const int *positions, Upcoming<T> after) {
  Softmax rows[R];
  int lowest = positions[0], highest = positions[0];
  for (int r = 1; r < R; r++) {
    lowest = positions[r] < lowest ? positions[r] : lowest;
    highest = positions[r] > highest ? positions[r] : highest;
  }
  std::memset(memory.sums, 0, sizeof(float) * R * head_dim);
  const int first_sub = window.first_key(lowest) / SUB, last_sub = highest / SUB;
  for (int span = first_sub / SUBS; span <= last_sub / SUBS; span++) {
    const int begin = span * SUBS > first_sub ? span * SUBS : first_sub;
    const int end = (span + 1) * SUBS < last_sub + 1 ? (span + 1) * SUBS : last_sub + 1;
    Upcoming<T> same{&reader, end, last_sub + 1};
    Upcoming<T> &upcoming = end <= last_sub ? same : after;
    const char *ahead[SUBS];
    for (int sub = begin; sub < end; sub++) ahead[sub - begin] = upcoming.take(reader.keys + reader.at(sub));
    score<T, R>(memory, reader, window, head_dim, span, begin, end);
    const bool whole = end * SUB - 1 <= lowest && window.first_key(highest) <= begin * SUB;
    for (int r = 0; r < R; r++) {
      float *scores = memory.scores + r * SPAN;
      typename T::operand *weights = memory.weights + r * SPAN;
      const Visible visible{window.first_key(positions[r]), positions[r]};
      if (whole)
        weigh<T, false>(rows[r], scores, weights, begin, end, span, visible);
      else
        weigh<T, true>(rows[r], scores, weights, begin, end, span, visible);
    }
    int dim = 0;
    for (; dim + 2 * LANES <= head_dim; dim += 2 * LANES)
      accumulate<T, R, 2>(memory, reader, rows, head_dim, dim, span, begin, end, ahead);
    if (dim < head_dim) accumulate<T, R, 1>(memory, reader, rows, head_dim, dim, span, begin, end, ahead);
  }
  for (int r = 0; r < R; r++) {
    const float share = 1.0f / rows[r].total;
    for (int d = 0; d < head_dim; d += LANES)
      store(memory.sums + r * head_dim + d, load(memory.sums + r * head_dim + d) * share);
  }
}

template <class T, int R = ROWS>
void attend_rows(int count, const TileMemory<T> &memory, const Reader<T> &reader, const Window &window, int head_dim,
                 const int *positions, const Upcoming<T> &after) {
  if constexpr (R >= 1) {
    if (count == R) return attend<T, R>(memory, reader, window, head_dim, positions, after);
    attend_rows<T, R - 1>(count, memory, reader, window, head_dim, positions, after);
  }
}

}  // namespace PLIMSOLL_ISA
