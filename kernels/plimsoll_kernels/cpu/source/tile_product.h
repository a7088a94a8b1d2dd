// Matrix products with packed weights (panels.h) in the processor's tiles: y = x W^T.
//
// A *block* is up to BLOCK_TILES tiles of rows times one panel, or one tile of rows times two, with all sums in tiles.
// Each sum runs over K in order, STEP words at a time, independent of the other work: a row's result does not depend on
// its batch or the number of threads.
#pragma once

#include "panels.h"
#include "tile.h"

namespace PLIMSOLL_ISA {

using plimsoll::Crew;

// Queries that are attended together.
constexpr int ROWS = TILE_ROWS;
// Tiles of columns in a panel.
constexpr int PANEL_TILES = PANEL / TILE_WORDS;
// Tiles of rows in a block. Two tiles of either side make four sums of four loads; other shapes load more for each sum.
constexpr int BLOCK_TILES = 2;
// The first of two tiles of columns: one is loaded while the other is multiplied.
constexpr int COLUMNS_TILE = 6;

// Several blocks of rows process a *slice* of K together: a panel's part of it, 16 KiB, stays in the first level cache
// while their rows come from the second. Between two slices sums are in memory, which does not change them.
constexpr int SLICE_STEPS = 8;
// The most tiles of rows that are multiplied together, and panels for them: a thread's sums of them stay in the second
// level cache.
constexpr int CHUNK_TILES = 32, GROUP_PANELS = 8;
constexpr int CHUNK_SUMS = 64 * 1024;
// Rows of more bytes do not stay in the second level cache from one panel to the next: their slices then take several
// panels.
constexpr size_t CHUNK_BYTES = 1024 * 1024;

// Sums and rows are in the first six tiles, columns in the last two.
inline Shapes product_shapes(int rows) {
  Shapes shapes;
  for (int tile = 0; tile < COLUMNS_TILE; tile++) shapes.set(tile, rows, TILE_WORDS);
  for (int tile = COLUMNS_TILE; tile < COLUMNS_TILE + 2; tile++) shapes.set(tile, TILE_WORDS, TILE_WORDS);
  return shapes;
}

// sums [R x TILE_ROWS, P x PANEL] (+)= `steps` steps of tiles of rows that begin at x[0] ... x[R - 1], times those of P
// panels, at a distance of `panel_bytes`. BEGINS: there are no sums yet. Calls beside(step) while a step is multiplied.
template <class T, int R, int P, bool BEGINS, class Side>
inline void multiply_block(const typename T::operand *const (&x)[R], size_t stride, const typename T::weight *panel,
                           size_t panel_bytes, int steps, float *sums, const Side &beside) {
  constexpr int COLUMNS = P * PANEL_TILES, ROWS_TILE = R * COLUMNS;
  static_assert(ROWS_TILE + R <= COLUMNS_TILE);
  const size_t row_bytes = stride * sizeof(typename T::operand), sum_bytes = P * PANEL * sizeof(float);
  const char *rows[R], *columns = reinterpret_cast<const char *>(panel);
  for (int r = 0; r < R; r++) rows[r] = reinterpret_cast<const char *>(x[r]);
  const auto sums_at = [&](int i) ALWAYS_INLINE {
    return sums + i / COLUMNS * TILE_ROWS * P * PANEL + i % COLUMNS * TILE_WORDS;
  };
  each_tile<ROWS_TILE>([&](auto i) ALWAYS_INLINE {
    if constexpr (BEGINS)
      tile_zero<i>();
    else
      tile_load<i>(sums_at(i), sum_bytes);
  });
  for (int step = 0; step < steps; step++) {
    each_tile<COLUMNS>([&](auto c) ALWAYS_INLINE {
      tile_load<COLUMNS_TILE + c % 2>(columns + c / PANEL_TILES * panel_bytes + c % PANEL_TILES * 64, PANEL * 4);
      each_tile<R>([&](auto r) ALWAYS_INLINE {
        if constexpr (c == 0) tile_load<ROWS_TILE + r>(rows[r], row_bytes);
        if constexpr (c == 1 && r == 0) beside(step);
        T::template multiply_tiles<r * COLUMNS + c, ROWS_TILE + r, COLUMNS_TILE + c % 2>();
      });
    });
    for (int r = 0; r < R; r++) rows[r] += T::STEP * 4;
    columns += T::STEP * PANEL * 4;
  }
  each_tile<ROWS_TILE>([&](auto i) ALWAYS_INLINE { tile_store<i>(sums_at(i), sum_bytes); });
}

// Cuts all rows of x into tiles, as even as possible. Tiles have one height, so the last may begin in the one before
// it: rows in both are computed twice and used once.
struct RowTiles {
  int rows, tiles, height;

  explicit RowTiles(int count)
      : rows(count), tiles((count + TILE_ROWS - 1) / TILE_ROWS), height((count + tiles - 1) / tiles) {}

  int begin(int tile) const { return tile * height < rows - height ? tile * height : rows - height; }
  // The rows from here on belong to this tile or to later ones.
  int first(int tile) const { return tile * height < rows ? tile * height : rows; }
};

// Prefetches memory during a product, some lines a step: into the first level cache the data used soon (by way of the
// second it took a tenth longer), into the second the data that waits for other rows.
struct Streamed {
  const char *from;
  int lines;
  // From this step on, the prefetched address is this many bytes further.
  int turn;
  size_t further;

  inline __attribute__((always_inline)) void fetch(int step) const {
    const char *at = from + static_cast<size_t>(step) * lines * 64 + (step >= turn ? further : 0);
    for (int i = 0; i < lines; i++) prefetch_near(at + i * 64);
  }
};

// Passes R rows of sums, at a distance of `width` floats, to their destination.
template <int R, class Panel>
inline __attribute__((always_inline)) void emit_rows(const Panel &to, int row, const float *sums, int width) {
  floats parts[R][2];
  for (int r = 0; r < R; r++)
    for (int v = 0; v < 2; v++) parts[r][v] = load(sums + r * width + v * LANES);
  to.template operator()<R>(row, parts);
}

// Summed rows of a block that are not written yet: they are written some at a time during the products of the next
// block.
template <class Panel>
struct PendingRows {
  Panel to;
  const float *sums[BLOCK_TILES] = {}; // of each tile's first row
  int begins[BLOCK_TILES] = {}; // that row
  int next = 0, second = 0, end = 0; // rows; those from `second` on belong to the second tile

  // Writes `count` rows, or up to 3 more, because 4 rows of a tile are written at once if there are as many.
  inline __attribute__((always_inline)) void write(int count) {
    while (count > 0 && next < end) {
      const int until = next < second ? second : end;
      count -= next + 4 <= until ? write_rows<4>() : write_rows<1>();
    }
  }

  template <int R>
  inline __attribute__((always_inline)) int write_rows() {
    const int tile = next >= second;
    emit_rows<R>(to, next, sums[tile] + (next - begins[tile]) * PANEL, PANEL);
    next += R;
    return R;
  }
};

// All of x [rows, k] W^T, `count` panels in all. Rows of x are at a distance of `stride` operands, and padded with
// zeros to whole steps. emit(panel).operator()<R>(row, sums) gets R rows at a time, each row once.
template <class T, class Emit>
class TileProduct {
 public:
  using weight = typename T::weight;
  using operand = typename T::operand;

  TileProduct(const operand *x, size_t stride, int rows, const weight *weight, int k, int count, const Emit &emit)
      : x_(x),
        stride_(stride),
        weight_(weight),
        count_(count),
        steps_(words<T>(k) / T::STEP),
        panel_bytes_(panel_elements<T>(k) * sizeof(*weight)),
        emit_(emit),
        rows_(rows),
        chunks_((rows_.tiles + CHUNK_TILES - 1) / CHUNK_TILES) {}

  void run(const Crew &crew) const {
    const Shapes shapes = product_shapes(rows_.height);
    if (rows_.tiles <= BLOCK_TILES) {
      crew.each(count_, 1, [&](int begin, int end, int) {
        shape_tiles(shapes);
        stream(begin, end);
      });
      return;
    }
    // Several groups for each thread, so that none waits long for the last one.
    const int fair = chunks_ * count_ / (4 * crew.threads());
    const int group = wanted_group() < fair ? wanted_group() : fair > 1 ? fair : 1;
    const int groups = (count_ + group - 1) / group;
    crew.each(chunks_ * groups, 1, [&](int begin, int end, int) {
      shape_tiles(shapes);
      for (int item = begin; item < end;) {
        const int chunk = item / groups, first = item % groups;
        const int last = groups - first < end - item ? groups : first + end - item;
        chunk_of(chunk, first * group, last * group < count_ ? last * group : count_, group);
        item += last - first;
      }
    });
  }

  // All rows through panels [begin, count), by the calling thread.
  void run_from(int begin) const {
    shape_tiles(product_shapes(rows_.height));
    if (rows_.tiles <= BLOCK_TILES) return stream(begin, count_);
    for (int chunk = 0; chunk < chunks_; chunk++) chunk_of(chunk, begin, count_, wanted_group());
  }

 private:
  using Panel = decltype(std::declval<const Emit &>()(0));

  // Far enough ahead to hide the memory's latency.
  static constexpr int DISTANCE = 8192;
  // Bytes of a panel in a step, and their cache lines.
  static constexpr int STEP_BYTES = T::STEP * PANEL * 4, STEP_LINES = STEP_BYTES / 64;

  const operand *x_;
  size_t stride_;
  const weight *weight_;
  int count_, steps_;
  size_t panel_bytes_;
  const Emit &emit_;
  RowTiles rows_;
  int chunks_;

  const char *bytes_of(int panel) const { return reinterpret_cast<const char *>(weight_) + panel * panel_bytes_; }
  const weight *weight_of(int panel, int step) const {
    return reinterpret_cast<const weight *>(bytes_of(panel) + static_cast<size_t>(step) * STEP_BYTES);
  }
  const operand *rows_of(int tile) const { return x_ + rows_.begin(tile) * stride_; }
  int chunk_begin(int chunk) const { return static_cast<int>(static_cast<int64_t>(rows_.tiles) * chunk / chunks_); }

  // Panels that a slice of a chunk's rows takes, before the next slice does.
  int wanted_group() const {
    const int tiles = (rows_.tiles + chunks_ - 1) / chunks_;
    if (static_cast<size_t>(tiles) * TILE_ROWS * stride_ * sizeof(operand) <= CHUNK_BYTES) return 1;
    const int fits = CHUNK_SUMS / (tiles * TILE_ROWS * PANEL);
    return fits < GROUP_PANELS ? fits : GROUP_PANELS;
  }

  // Prefetches a panel in memory order, as its words are used soon, and then the panel that is `then` panels after it.
  Streamed streamed(int panel, int then) const {
    return {bytes_of(panel) + DISTANCE, STEP_LINES, steps_ - DISTANCE / STEP_BYTES, (then - 1) * panel_bytes_};
  }

  // Few rows through panels [begin, end): one tile of them takes two panels at once.
  void stream(int begin, int end) const {
    for (int panel = begin; panel < end;) {
      if (rows_.tiles == 1 && panel + 1 < end) {
        streamed_block<1, 2>(panel);
        panel += 2;
      } else {
        rows_.tiles == 1 ? streamed_block<1, 1>(panel) : streamed_block<2, 1>(panel);
        panel++;
      }
    }
  }

  template <int R, int P>
  void streamed_block(int panel) const {
    alignas(64) float sums[R * TILE_ROWS * P * PANEL];
    const operand *x[R];
    for (int r = 0; r < R; r++) x[r] = rows_of(r);
    for (int p = 0; p < P; p++) emit_(panel + p).prefetch(0, rows_.rows);
    Streamed ahead[P];
    for (int p = 0; p < P; p++) ahead[p] = streamed(panel + p, P);
    multiply_block<T, R, P, true>(x, stride_, weight_of(panel, 0), panel_bytes_, steps_, sums, [&](int step) ALWAYS_INLINE {
      for (const Streamed &each : ahead) each.fetch(step);
    });
    for (int p = 0; p < P; p++) {
      const auto emit = emit_(panel + p);
      for (int row = 0; row < rows_.rows; row++) {
        const int tile = row >= rows_.first(1);
        emit_rows<1>(emit, row, sums + ((tile * TILE_ROWS + row - rows_.begin(tile)) * P + p) * PANEL, P * PANEL);
      }
    }
  }

  // A chunk of rows through panels [begin, end), `group` at a time, slice by slice.
  void chunk_of(int chunk, int begin, int end, int group) const {
    alignas(64) float sums[CHUNK_SUMS];
    const int first = chunk_begin(chunk), last = chunk_begin(chunk + 1);
    const size_t panel_sums = static_cast<size_t>(last - first) * TILE_ROWS * PANEL;
    PendingRows<Panel> pending{emit_(begin)};
    for (int from = begin; from < end; from += group) {
      const int to = from + group < end ? from + group : end;
      for (int step = 0; step < steps_; step += SLICE_STEPS) {
        const int until = step + SLICE_STEPS < steps_ ? step + SLICE_STEPS : steps_;
        for (int panel = from; panel < to; panel++) {
          const char *next = panel + 1 < to    ? bytes_of(panel + 1) + static_cast<size_t>(step) * STEP_BYTES
                             : until < steps_ ? bytes_of(from) + static_cast<size_t>(until) * STEP_BYTES
                             : to < end       ? bytes_of(to)
                                              : nullptr;
          slice(panel, first, last, step, until, sums + (panel - from) * panel_sums, next, pending);
        }
      }
    }
    pending.write(pending.end);
  }

  // Tiles of rows through steps [begin, end) of a panel, block by block, while the data at `next` is prefetched.
  void slice(int panel, int first, int last, int begin, int end, float *sums, const char *next,
             PendingRows<Panel> &pending) const {
    const int blocks = (last - first + BLOCK_TILES - 1) / BLOCK_TILES;
    const int lines = next ? (STEP_LINES + blocks - 1) / blocks : 0;
    for (int tile = first; tile < last; tile += BLOCK_TILES) {
      float *own = sums + static_cast<size_t>(tile - first) * TILE_ROWS * PANEL;
      if (tile + 1 < last)
        sliced_block<2>(panel, tile, begin, end, own, next, lines, pending);
      else
        sliced_block<1>(panel, tile, begin, end, own, next, lines, pending);
      next += static_cast<size_t>(end - begin) * lines * 64;
    }
  }

  template <int R>
  void sliced_block(int panel, int tile, int begin, int end, float *sums, const char *next, int lines,
                    PendingRows<Panel> &pending) const {
    const operand *x[R];
    for (int r = 0; r < R; r++) x[r] = rows_of(tile + r) + static_cast<size_t>(begin) * T::STEP * T::PAIR;
    const int share = (pending.end - pending.next + end - begin - 1) / (end - begin);
    const auto beside = [&](int step) ALWAYS_INLINE {
      for (int i = 0; i < lines; i++) prefetch_far(next + (static_cast<size_t>(step) * lines + i) * 64);
      pending.write(share);
    };
    if (begin == 0)
      multiply_block<T, R, 1, true>(x, stride_, weight_of(panel, begin), 0, end - begin, sums, beside);
    else
      multiply_block<T, R, 1, false>(x, stride_, weight_of(panel, begin), 0, end - begin, sums, beside);
    if (end < steps_) return;
    const int after = rows_.first(tile + R);
    pending.to = emit_(panel);
    for (int r = 0; r < R; r++) pending.sums[r] = sums + r * TILE_ROWS * PANEL, pending.begins[r] = rows_.begin(tile + r);
    pending.next = rows_.first(tile);
    pending.second = R == 2 ? rows_.first(tile + 1) : after;
    pending.end = after;
  }
};

template <class T, class Emit>
void multiply_panels(const Crew &crew, const typename T::operand *x, size_t stride, int rows,
                     const typename T::weight *weight, int k, int count, const Emit &emit) {
  if (rows == 0) return;
  TileProduct<T, Emit>(x, stride, rows, weight, k, count, emit).run(crew);
}

// Rows of one chunk.
template <class T>
inline int chunk_rows(size_t) {
  return CHUNK_TILES * TILE_ROWS;
}

// At most a chunk's rows through panels [begin, end), by the calling thread. The data that it reads next is not
// prefetched here.
template <class T, class Emit>
void multiply_range(const typename T::operand *x, size_t stride, int rows, const typename T::weight *weight, int k,
                    int begin, int end, const typename T::weight *, const Emit &emit) {
  TileProduct<T, Emit>(x, stride, rows, weight, k, end, emit).run_from(begin);
}

}  // namespace PLIMSOLL_ISA
