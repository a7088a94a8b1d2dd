// Matrix products with packed weights (panels.h) in the processor's tiles: y = x W^T.
//
// A *block* is up to BLOCK_TILES tiles of rows times one panel, or one tile of rows times two, with all sums in tiles. Each
// sum runs over K in order, STEP words at a time, whatever else is computed beside it: a row's result does not depend on
// the batch it is in, nor on the number of threads.
#pragma once

#include "panels.h"
#include "tile.h"

namespace PLIMSOLL_ISA {

using plimsoll::Crew;

// Rows that are taken through all panels together: their words should stay in the second level cache. Of wide rows it is
// at least so many tiles: each chunk reads the whole weight again.
constexpr int CHUNK_BYTES = 1152 * 1024, CHUNK_TILES = 4;
// Queries that are attended together.
constexpr int ROWS = TILE_ROWS;
// Tiles of columns in a panel.
constexpr int PANEL_TILES = PANEL / TILE_WORDS;
// Of rows, in a block. Two tiles of either side make four sums of four loads; any other shape loads more for each sum.
constexpr int BLOCK_TILES = 2;
constexpr int COLUMNS_TILE = 7;

// Sums and rows in the first seven tiles, in the last one columns.
inline Shapes product_shapes(int rows) {
  Shapes shapes;
  for (int tile = 0; tile < COLUMNS_TILE; tile++) shapes.set(tile, rows, TILE_WORDS);
  shapes.set(COLUMNS_TILE, TILE_WORDS, TILE_WORDS);
  return shapes;
}

// What comes from memory beside a product, so many lines a step: into the first level cache what is used a little later
// (by way of the second it took a tenth longer), into the second what waits for other rows.
struct Beside {
  const char *from;
  int lines;
  bool soon;
  // From this step on what is wanted lies so many bytes further.
  int turn = 0;
  size_t further = 0;

  inline __attribute__((always_inline)) void fetch(int step) const {
    const char *at = from + static_cast<size_t>(step) * lines * 64 + (step >= turn ? further : 0);
    if (soon)
      for (int i = 0; i < lines; i++) prefetch_near(at + i * 64);
    else
      for (int i = 0; i < lines; i++) prefetch_far(at + i * 64);
  }
};

// sums [R x TILE_ROWS, P x PANEL] = tiles of rows that begin at x[0] ... x[R - 1], times P panels.
template <class T, int R, int P>
inline void multiply_block(const typename T::operand *const (&x)[R], size_t stride, const typename T::weight *panel, int k,
                           const Beside (&ahead)[P], float *sums) {
  constexpr int COLUMNS = P * PANEL_TILES, ROWS_TILE = R * COLUMNS;
  static_assert(ROWS_TILE + R <= COLUMNS_TILE);
  const size_t row_bytes = stride * sizeof(typename T::operand);
  const size_t panel_bytes = panel_elements<T>(k) * sizeof(typename T::weight);
  const char *rows[R], *columns = reinterpret_cast<const char *>(panel);
  for (int r = 0; r < R; r++) rows[r] = reinterpret_cast<const char *>(x[r]);
  each_tile<ROWS_TILE>([&](auto i) ALWAYS_INLINE { tile_zero<i>(); });
  const int steps = words<T>(k) / T::STEP;
  for (int step = 0; step < steps; step++) {
    for (const Beside &beside : ahead) beside.fetch(step);
    each_tile<COLUMNS>([&](auto c) ALWAYS_INLINE {
      tile_load<COLUMNS_TILE>(columns + c / PANEL_TILES * panel_bytes + c % PANEL_TILES * 64, PANEL * 4);
      each_tile<R>([&](auto r) ALWAYS_INLINE {
        if constexpr (c == 0) tile_load<ROWS_TILE + r>(rows[r], row_bytes);
        T::template multiply_tiles<r * COLUMNS + c, ROWS_TILE + r, COLUMNS_TILE>();
      });
    });
    for (int r = 0; r < R; r++) rows[r] += T::STEP * 4;
    columns += T::STEP * PANEL * 4;
  }
  each_tile<ROWS_TILE>([&](auto i) ALWAYS_INLINE {
    tile_store<i>(sums + i / COLUMNS * TILE_ROWS * P * PANEL + i % COLUMNS * TILE_WORDS, P * PANEL * 4);
  });
}

// Rows of sums, `width` apart, to where they belong.
template <class Emit>
inline void emit_rows(const Emit &emit, int row, const float *sums, int first, int last, int width) {
  for (int r = first; r < last; r++) {
    const floats parts[1][2] = {{load(sums + r * width), load(sums + r * width + LANES)}};
    emit.template operator()<1>(row + r, parts);
  }
}

// The tiles of rows that all of x is cut into, as even as they can be. Tiles have one height, so the last may begin in the
// one before it: what they share is computed twice and used once.
struct RowTiles {
  int rows, tiles, height;

  explicit RowTiles(int count)
      : rows(count), tiles((count + TILE_ROWS - 1) / TILE_ROWS), height((count + tiles - 1) / tiles) {}

  int begin(int tile) const { return tile * height < rows - height ? tile * height : rows - height; }
  int first_new(int tile) const { return tile * height - begin(tile); }
};

// All of x [rows, k] W^T, `count` panels in all. Rows of x are `stride` operands apart, and padded with zeros to whole
// steps. emit(panel).operator()<1>(row, sums) gets each row.
template <class T, class Emit>
class TileProduct {
 public:
  using weight = typename T::weight;
  using operand = typename T::operand;

  TileProduct(const operand *x, size_t stride, int rows, const weight *weight, int k, int count, const Emit &emit)
      : x_(x), stride_(stride), weight_(weight), k_(k), count_(count), emit_(emit), rows_(rows) {
    const int fits = CHUNK_BYTES / (rows_.height * static_cast<int>(stride * sizeof(operand)));
    const int chunk = fits > CHUNK_TILES ? fits : CHUNK_TILES;
    chunks_ = (rows_.tiles + chunk - 1) / chunk;
  }

  void run(const Crew &crew) const {
    const Shapes shapes = product_shapes(rows_.height);
    crew.each(chunks_ * count_, 1, [&](int begin, int end, int) {
      shape_tiles(shapes);
      for (int item = begin; item < end; item++) {
        const int panel = item % count_, chunk = item / count_;
        if (rows_.tiles == 1 && panel + 1 < count_ && item + 1 < end) {
          twin(panel);
          item++;
        } else {
          all_tiles(panel, chunk_begin(chunk), chunk_begin(chunk + 1));
        }
      }
    });
  }

  // All rows through panels [begin, count), by the calling thread.
  void run_from(int begin) const {
    shape_tiles(product_shapes(rows_.height));
    for (int panel = begin; panel < count_; panel++) {
      if (rows_.tiles == 1 && panel + 1 < count_) {
        twin(panel);
        panel++;
      } else {
        all_tiles(panel, 0, rows_.tiles);
      }
    }
  }

 private:
  // Far enough ahead for memory to answer.
  static constexpr int DISTANCE = 8192;
  // Cache lines of a panel in a step.
  static constexpr int STEP_LINES = T::STEP * PANEL * 4 / 64;

  const operand *x_;
  size_t stride_;
  const weight *weight_;
  int k_, count_, chunks_;
  const Emit &emit_;
  RowTiles rows_;

  int chunk_begin(int chunk) const { return static_cast<int>(static_cast<int64_t>(rows_.tiles) * chunk / chunks_); }
  const weight *weight_of(int panel) const { return weight_ + panel * panel_elements<T>(k_); }

  // A panel as memory brings it, each of whose words is used soon, and then the one that many panels after it.
  Beside streamed(int panel, int then) const {
    const int turn = words<T>(k_) / T::STEP - DISTANCE / (STEP_LINES * 64);
    const size_t between = (then - 1) * panel_elements<T>(k_) * sizeof(weight);
    return {reinterpret_cast<const char *>(weight_of(panel)) + DISTANCE, STEP_LINES, true, turn, between};
  }

  // One tile of rows through two panels.
  void twin(int panel) const {
    alignas(64) float sums[TILE_ROWS * 2 * PANEL];
    const auto one = emit_(panel), other = emit_(panel + 1);
    one.prefetch(0, rows_.height);
    other.prefetch(0, rows_.height);
    multiply_block<T, 1, 2>({x_}, stride_, weight_of(panel), k_, {streamed(panel, 2), streamed(panel + 1, 2)}, sums);
    emit_rows(one, 0, sums, 0, rows_.height, 2 * PANEL);
    emit_rows(other, 0, sums + PANEL, 0, rows_.height, 2 * PANEL);
  }

  // Tiles of rows through one panel, block by block. Where those are several, the next panel comes in beside them.
  void all_tiles(int panel, int first, int last) const {
    const int blocks = (last - first + BLOCK_TILES - 1) / BLOCK_TILES;
    const int lines = panel + 1 < count_ ? (STEP_LINES + blocks - 1) / blocks : 0;
    const char *next = reinterpret_cast<const char *>(weight_of(panel + 1));
    for (int tile = first; tile < last; tile += BLOCK_TILES) {
      const Beside ahead = blocks == 1 ? streamed(panel, 1) : Beside{next, lines, false};
      next += static_cast<size_t>(words<T>(k_) / T::STEP) * lines * 64;
      if (tile + 1 < last)
        block<2>(panel, tile, ahead);
      else
        block<1>(panel, tile, ahead);
    }
  }

  template <int R>
  void block(int panel, int tile, const Beside &ahead) const {
    alignas(64) float sums[R * TILE_ROWS * PANEL];
    const auto emit = emit_(panel);
    const operand *x[R];
    for (int r = 0; r < R; r++) {
      x[r] = x_ + rows_.begin(tile + r) * stride_;
      emit.prefetch(rows_.begin(tile + r), rows_.height);
    }
    multiply_block<T, R, 1>(x, stride_, weight_of(panel), k_, {ahead}, sums);
    for (int r = 0; r < R; r++)
      emit_rows(emit, rows_.begin(tile + r), sums + r * TILE_ROWS * PANEL, rows_.first_new(tile + r), rows_.height, PANEL);
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
inline int chunk_rows(size_t stride) {
  const int fits = CHUNK_BYTES / (TILE_ROWS * static_cast<int>(stride * sizeof(typename T::operand)));
  return (fits > CHUNK_TILES ? fits : CHUNK_TILES) * TILE_ROWS;
}

// At most a chunk's rows through panels [begin, end), by the calling thread. What it reads next is not asked for here.
template <class T, class Emit>
void multiply_range(const typename T::operand *x, size_t stride, int rows, const typename T::weight *weight, int k,
                    int begin, int end, const typename T::weight *, const Emit &emit) {
  TileProduct<T, Emit>(x, stride, rows, weight, k, end, emit).run_from(begin);
}

}  // namespace PLIMSOLL_ISA
