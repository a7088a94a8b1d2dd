// Attention's products in the processor's tiles: queries and weights are a tile's rows, sub-blocks of the cache its
// columns.
#pragma once

#include "attend.h"
#include "tile.h"

namespace PLIMSOLL_ISA {

// Tiles of sums and of their factors: rows and columns of a whole step, and of half a step. A sub-block's tokens are
// half a step of a product with values, and so is the remainder of a head's dimensions after whole steps.
constexpr int SUMS = 4, ROWS_TILE = 4, HALF_ROWS_TILE = 5, KEYS_TILE = 6, HALF_COLUMNS_TILE = 7;
constexpr int HALF_STEP = TILE_WORDS / 2;

inline Shapes attention_shapes(int rows) {
  Shapes shapes;
  for (int tile = 0; tile < SUMS; tile++) shapes.set(tile, rows, TILE_WORDS);
  shapes.set(ROWS_TILE, rows, TILE_WORDS);
  shapes.set(HALF_ROWS_TILE, rows, HALF_STEP);
  shapes.set(KEYS_TILE, TILE_WORDS, TILE_WORDS);
  shapes.set(HALF_COLUMNS_TILE, HALF_STEP, TILE_WORDS);
  return shapes;
}

// Called by a thread before it attends to tiles of at most `rows` rows.
template <class T>
void prepare_attention(int rows) {
  static_assert(SUB / T::PAIR == HALF_STEP && SUB == TILE_WORDS);
  shape_tiles(attention_shapes(rows));
}

// See attend().
template <class T, class Keys>
struct TileProducts {
  static constexpr int STEP_VALUES = TILE_WORDS * T::PAIR, LINE = 64 / sizeof(typename T::cached);

  const TileMemory<T> &memory;
  const Reader<T> &reader;
  const Keys &from;
  const Window &window;
  int head_dim, value_dim, count;

  void score(int span, int begin, int end) const {
    from.each(begin, end, [&](int first, int last) { score_together(span, first, last); });
  }

  void accumulate(const Softmax *rows, int span, int begin, int end, const char *const *ahead) const {
    for (int r = 0; r < count; r++)
      if (rows[r].factor != 1)
        for (int d = 0; d < head_dim; d += LANES)
          store(memory.sums + r * head_dim + d, load(memory.sums + r * head_dim + d) * rows[r].factor);
    int dim = 0;
    for (; dim + SUMS * TILE_WORDS <= value_dim; dim += SUMS * TILE_WORDS)
      multiply_values<4>(dim, span, begin, end, ahead);
    for (; dim < value_dim; dim += TILE_WORDS) multiply_values<1>(dim, span, begin, end, ahead);
  }

 private:
  void score_together(int span, int begin, int end) const {
    for (int sub = begin; sub < end; sub += SUMS) {
      const int left = end - sub < SUMS ? end - sub : SUMS;
      if (left == 4) multiply_keys<4>(span, sub);
      if (left == 3) multiply_keys<3>(span, sub);
      if (left == 2) multiply_keys<2>(span, sub);
      if (left == 1) multiply_keys<1>(span, sub);
    }
    for (int r = 0; r < count; r++) {
      float *row = memory.scores + r * SPAN;
      for (int i = (begin - span * SUBS) * SUB; i < (end - span * SUBS) * SUB; i += LANES)
        store(row + i, window.score(load(row + i)));
    }
  }

  // Scores of N sub-blocks, with their values prefetched at the same time.
  template <int N>
  void multiply_keys(int span, int sub) const {
    const char *keys[N], *values[N];
    for (int i = 0; i < N; i++) {
      keys[i] = reinterpret_cast<const char *>(from.keys + from.at(sub + i));
      values[i] = from.values_of(sub + i);
    }
    each_tile<N>([&](auto i) ALWAYS_INLINE { tile_zero<i>(); });
    const size_t stride = memory.query_stride * sizeof(typename T::operand);
    int d = 0;
    for (; d + STEP_VALUES <= head_dim; d += STEP_VALUES) {
      tile_load<ROWS_TILE>(memory.query + d, stride);
      each_tile<N>([&](auto i) ALWAYS_INLINE {
        tile_load<KEYS_TILE>(keys[i], 64);
        T::template multiply_tiles<i, ROWS_TILE, KEYS_TILE>();
        for (int line = 0; line < TILE_WORDS; line++) prefetch_far(values[i] + line * 64);
        keys[i] += TILE_WORDS * 64;
        values[i] += TILE_WORDS * 64;
      });
    }
    if (d < head_dim) {
      tile_load<HALF_ROWS_TILE>(memory.query + d, stride);
      each_tile<N>([&](auto i) ALWAYS_INLINE {
        tile_load<HALF_COLUMNS_TILE>(keys[i], 64);
        T::template multiply_tiles<i, HALF_ROWS_TILE, HALF_COLUMNS_TILE>();
      });
    }
    float *out = memory.scores + (sub - span * SUBS) * SUB;
    each_tile<N>([&](auto i) ALWAYS_INLINE { tile_store<i>(out + i * SUB, SPAN * sizeof(float)); });
  }

  // N tiles of dimensions.
  template <int N>
  void multiply_values(int dim, int span, int begin, int end, const char *const *ahead) const {
    const size_t stride = head_dim * sizeof(float);
    float *sums = memory.sums + dim;
    each_tile<N>([&](auto i) ALWAYS_INLINE { tile_load<i>(sums + i * TILE_WORDS, stride); });
    for (int sub = begin; sub < end; sub++) {
      const char *values = reader.values_of(sub) + static_cast<size_t>(dim) * 4;
      const char *next = ahead[sub - begin] + static_cast<size_t>(dim) * SUB * sizeof(typename T::cached);
      tile_load<HALF_ROWS_TILE>(memory.weights + (sub - span * SUBS) * SUB, SPAN * sizeof(typename T::operand));
      each_tile<N>([&](auto i) ALWAYS_INLINE {
        tile_load<HALF_COLUMNS_TILE>(values + i * 64, stride);
        T::template multiply_tiles<i, HALF_ROWS_TILE, HALF_COLUMNS_TILE>();
        for (int line = 0; line < HALF_STEP; line++) prefetch_far(next + (i * HALF_STEP + line) * 64);
      });
    }
    each_tile<N>([&](auto i) ALWAYS_INLINE { tile_store<i>(sums + i * TILE_WORDS, stride); });
  }
};

template <class T, class Keys>
void attend_rows(int count, const TileMemory<T> &memory, const Reader<T> &reader, const Keys &keys, const Window &window,
                 int head_dim, int value_dim, const TileRow *rows, const Upcoming<T> &after) {
  const TileProducts<T, Keys> products{memory, reader, keys, window, head_dim, value_dim, count};
  attend<T>(products, count, memory, reader, window, head_dim, rows, after);
}

}  // namespace PLIMSOLL_ISA
