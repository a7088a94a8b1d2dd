// Matrix products with packed weights (panels.h) in vector registers: y = x W^T.
//
// A *tile* is up to ROWS rows of x times one panel, all sums in registers. Each sum runs over K in order, independent
// of the other work: a row's result does not depend on its batch or the number of threads.
#pragma once

#include "crew.h"
#include "panels.h"

namespace PLIMSOLL_ISA {

using plimsoll::Crew;

// Sums of ROWS x 2 vectors, two operands and a broadcast word must fit into the registers.
constexpr int ROWS = LANES == 16 ? 12 : 6;
// Up to this many rows take two panels at once if a panel is narrow (three rows would need all registers for their
// sums).
constexpr int TWIN_ROWS = LANES == 16 ? 0 : 2;

// Rows that pass through all panels together: their words should stay in the second level cache.
constexpr int CHUNK_BYTES = 384 * 1024;

// Prefetches into the second level cache during a product: one line a word from each of LINES places.
template <int LINES>
struct Ahead {
  const char *from[LINES > 0 ? LINES : 1];

  inline __attribute__((always_inline)) void fetch(int k) const {
#pragma GCC unroll 4
    for (int i = 0; i < LINES; i++) prefetch_far(from[i] + static_cast<size_t>(k) * 64);
  }
};

// The same during a product with a panel, whose own lines are prefetched into the first level cache shortly before
// their use.
template <class T, int LINES>
struct PanelAhead {
  static constexpr int WORD = panel_lines<T> * 64, DISTANCE = 12;

  Ahead<LINES> next;
  const char *panel;

  inline __attribute__((always_inline)) void fetch(int k) const {
    next.fetch(k);
    for (int line = 0; line < WORD; line += 64)
      prefetch_near(panel + static_cast<size_t>(k + DISTANCE) * WORD + line);
  }
};

// Panels of which each word is used once: prefetched in memory order, just far enough ahead to hide the memory's
// latency (a whole panel ahead took a tenth longer).
template <class T, int PANELS>
struct Streamed {
  static constexpr int WORD = panel_lines<T> * 64, DISTANCE = 8192;

  const char *first;
  size_t apart;

  inline __attribute__((always_inline)) void fetch(int k) const {
    for (int p = 0; p < PANELS; p++)
      for (int line = 0; line < WORD; line += 64)
        prefetch_far(first + p * apart + static_cast<size_t>(k) * WORD + DISTANCE + line);
  }
};

// The same for one panel, and then from the beginning of the next one, which is elsewhere.
template <class T>
struct StreamedThen {
  static constexpr int WORD = panel_lines<T> * 64, DISTANCE = Streamed<T, 1>::DISTANCE;

  const char *first;
  int turn;
  ptrdiff_t further;

  StreamedThen(const char *panel, const char *next, int count)
      : first(panel + DISTANCE), turn(count - DISTANCE / WORD), further(next - panel - static_cast<ptrdiff_t>(count) * WORD) {}

  inline __attribute__((always_inline)) void fetch(int k) const {
    const char *at = first + static_cast<size_t>(k) * WORD + (k >= turn ? further : 0);
    for (int line = 0; line < WORD; line += 64) prefetch_far(at + line);
  }
};

struct Nothing {
  inline __attribute__((always_inline)) void fetch(int) const {}
};

template <int R, int V>
inline __attribute__((always_inline)) void clear(floats (&sums)[R][V]) {
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) sums[r][v] = floats{};
}

// sums[r][v] += rows[r] x columns[v]: `count` words of each row, columns[v] advancing by `step` elements a word; rows
// are at a distance of `stride` operands.
template <class T, int R, int V, class Column, class Prefetch = Nothing>
inline __attribute__((always_inline)) void multiply(floats (&sums)[R][V], const typename T::operand *rows, size_t stride,
                                                    const Column *const (&columns)[V], size_t step, int count,
                                                    const Prefetch &ahead = {}) {
  // One pointer for three rows, the others one or two strides away: with one for each row the integer registers run
  // out. The empty asm keeps the compiler from undoing that.
  constexpr int POINTERS = (R + 2) / 3;
  const char *at[POINTERS];
#pragma GCC unroll 16
  for (int p = 0; p < POINTERS; p++) at[p] = reinterpret_cast<const char *>(rows + 3 * p * stride);
  const size_t apart = stride * sizeof(typename T::operand);
  for (int k = 0; k < count; k++) {
    ahead.fetch(k);
#pragma GCC unroll 16
    for (int p = 0; p < POINTERS; p++) asm("" : "+r"(at[p]));
#pragma GCC unroll 2
    for (int part = 0; part < T::PARTS; part++) {
      decltype(T::column(columns[0], part)) factors[V];
#pragma GCC unroll 4
      for (int v = 0; v < V; v++) factors[v] = T::column(columns[v] + k * step, part);
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) {
        const auto row = T::row(at[r / 3] + r % 3 * apart, part);
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) sums[r][v] = T::multiply_add(sums[r][v], row, factors[v]);
      }
    }
#pragma GCC unroll 16
    for (int p = 0; p < POINTERS; p++) at[p] += T::PAIR * sizeof(typename T::operand);
  }
}

// One tile of a weight's panel, passed to emit(first row, sums). The destination is prefetched during the product.
template <class T, int R, class Prefetch, class Emit>
inline void tile(const typename T::operand *x, size_t stride, int row, const typename T::weight *panel, int k,
                 const Prefetch &ahead, const Emit &emit) {
  floats sums[R][2];
  clear(sums);
  emit.prefetch(row, R);
  const typename T::weight *const columns[2] = {panel, panel + LANES * T::PAIR};
  multiply<T, R, 2>(sums, x + row * stride, stride, columns, PANEL * T::PAIR, words<T>(k), ahead);
  emit.template operator()<R>(row, sums);
}

// Two consecutive panels at once: with few rows and the sums of one panel alone, a product would wait for the one
// before it instead of for memory.
template <class T, int R, class Prefetch, class Emit>
inline void twin_tile(const typename T::operand *x, size_t stride, int row, const typename T::weight *panel, int k,
                      const Prefetch &ahead, const Emit &emit, const Emit &emit_next) {
  floats sums[R][4];
  clear(sums);
  const typename T::weight *next = panel + panel_elements<T>(k);
  const typename T::weight *const columns[4] = {panel, panel + LANES * T::PAIR, next, next + LANES * T::PAIR};
  multiply<T, R, 4>(sums, x + row * stride, stride, columns, PANEL * T::PAIR, words<T>(k), ahead);
  floats parts[2][R][2];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) parts[v / 2][r][v % 2] = sums[r][v];
  emit.template operator()<R>(row, parts[0]);
  emit_next.template operator()<R>(row, parts[1]);
}

template <class T, class Prefetch, class Emit, int R = TWIN_ROWS>
inline void twin_tile_of(int rows, const typename T::operand *x, size_t stride, int row,
                         const typename T::weight *panel, int k, const Prefetch &ahead, const Emit &emit,
                         const Emit &emit_next) {
  if constexpr (R >= 1) {
    if (rows == R) return twin_tile<T, R>(x, stride, row, panel, k, ahead, emit, emit_next);
    twin_tile_of<T, Prefetch, Emit, R - 1>(rows, x, stride, row, panel, k, ahead, emit, emit_next);
  }
}

template <class T, class Prefetch, class Emit, int R = ROWS>
inline void tile_of(int rows, const typename T::operand *x, size_t stride, int row,
                    const typename T::weight *panel, int k, const Prefetch &ahead, const Emit &emit) {
  if constexpr (R >= 1) {
    if (rows == R) return tile<T, R>(x, stride, row, panel, k, ahead, emit);
    tile_of<T, Prefetch, Emit, R - 1>(rows, x, stride, row, panel, k, ahead, emit);
  }
}

// Cuts rows into tiles that are as even as possible: a last tile of few rows would be bound by reading its panels.
struct RowTiles {
  int rows, tiles;

  explicit RowTiles(int count) : rows(count), tiles((count + ROWS - 1) / ROWS) {}

  int begin(int tile) const { return static_cast<int>(static_cast<int64_t>(rows) * tile / tiles); }
};

// Tiles [first, last) through one panel. If there are several, the next panel is prefetched during the arithmetic of
// this one, a line a word, in the first two tiles, even if it is one line wide, because not all prefetches at that rate
// succeed. A single tile has its own panel prefetched by `stream`.
template <class T, class Stream, class Emit>
inline void multiply_tiles(const typename T::operand *x, size_t stride, const RowTiles &rows, int first, int last,
                           const typename T::weight *panel, const typename T::weight *next, int k, const Stream &stream,
                           const Emit &emit) {
  constexpr int LINES = panel_lines<T>;
  const size_t apart = static_cast<size_t>(words<T>(k)) * 64;
  const char *own = reinterpret_cast<const char *>(panel), *after = reinterpret_cast<const char *>(next);
  for (int t = first; t < last; t++) {
    const int from = rows.begin(t), to = rows.begin(t + 1);
    if (last - first == 1)
      tile_of<T>(to - from, x, stride, from, panel, k, stream, emit);
    else if (t < first + 2 && next)
      tile_of<T>(to - from, x, stride, from, panel, k, PanelAhead<T, 1>{{{after + (t - first) * (LINES * apart / 2)}}, own},
                 emit);
    else
      tile_of<T>(to - from, x, stride, from, panel, k, PanelAhead<T, 0>{{{nullptr}}, own}, emit);
  }
}

// All of x [rows, k] W^T, `count` panels in all. Rows of x are at a distance of `stride` operands, a multiple of PAIR,
// and padded with zeros to whole words. emit(panel).operator()<R>(row, sums) gets each tile.
template <class T, class Emit>
void multiply_panels(const Crew &crew, const typename T::operand *x, size_t stride, int rows,
                     const typename T::weight *weight, int k, int count, const Emit &emit) {
  const size_t size = panel_elements<T>(k);
  const RowTiles tiles(rows);
  const int fits = CHUNK_BYTES / (ROWS * static_cast<int>(stride * sizeof(typename T::operand)));
  const int chunks = fits > 1 ? (tiles.tiles + fits - 1) / fits : tiles.tiles;
  const auto chunk_begin = [=](int c) { return static_cast<int>(static_cast<int64_t>(tiles.tiles) * c / chunks); };
  crew.each(chunks * count, 1, [&](int begin, int end, int) {
    for (int item = begin; item < end; item++) {
      const int p = item % count, first = chunk_begin(item / count), last = chunk_begin(item / count + 1);
      const typename T::weight *panel = weight + p * size;
      const char *own = reinterpret_cast<const char *>(panel);
      const bool more = p + 1 < count;
      if (rows <= TWIN_ROWS && more && item + 1 < end) {
        const Streamed<T, 2> ahead{own, size * sizeof(typename T::weight)};
        twin_tile_of<T>(rows, x, stride, 0, panel, k, ahead, emit(p), emit(p + 1));
        item++;
        continue;
      }
      multiply_tiles<T>(x, stride, tiles, first, last, panel, more ? panel + size : nullptr, k, Streamed<T, 1>{own, 0},
                        emit(p));
    }
  });
}

// Rows of one chunk.
template <class T>
inline int chunk_rows(size_t stride) {
  const int fits = CHUNK_BYTES / (ROWS * static_cast<int>(stride * sizeof(typename T::operand)));
  return (fits > 1 ? fits : 1) * ROWS;
}

// At most a chunk's rows through panels [begin, end), by the calling thread. `then`: the data that it reads next, or
// null.
template <class T, class Emit>
void multiply_range(const typename T::operand *x, size_t stride, int rows, const typename T::weight *weight, int k,
                    int begin, int end, const typename T::weight *then, const Emit &emit) {
  const size_t size = panel_elements<T>(k);
  const RowTiles tiles(rows);
  for (int p = begin; p < end; p++) {
    const typename T::weight *panel = weight + p * size, *next = p + 1 < end ? panel + size : then;
    const char *own = reinterpret_cast<const char *>(panel);
    if (rows <= TWIN_ROWS && p + 1 < end) {
      const Streamed<T, 2> ahead{own, size * sizeof(typename T::weight)};
      twin_tile_of<T>(rows, x, stride, 0, panel, k, ahead, emit(p), emit(p + 1));
      p++;
      continue;
    }
    const StreamedThen<T> stream(own, reinterpret_cast<const char *>(next ? next : panel + size), words<T>(k));
    multiply_tiles<T>(x, stride, tiles, 0, tiles.tiles, panel, next, k, stream, emit(p));
  }
}

}  // namespace PLIMSOLL_ISA
