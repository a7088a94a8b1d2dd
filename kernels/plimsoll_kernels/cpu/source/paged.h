// Attention of all sequences of a step: writes keys and values to the cache, then computes tiles of queries.
#pragma once

#include "attention.h"
#include "latent_keys.h"

namespace PLIMSOLL_ISA {

// The memory of one thread for tiles of a layer.
template <class T>
inline size_t tile_bytes_of(const PlimsollShape &shape) {
  return TileMemory<T>::bytes(shape.head_dim) + (shape.latent ? (LatentKeys<T>::bytes(shape.head_dim) + 127) / 64 * 64 : 0);
}

template <class T>
class Attention {
 public:
  using cached = typename T::cached;

  // `memory` has `tile_bytes` for each member of the crew.
  Attention(const PlimsollCache &cache, const PlimsollStep &step, const Crew &crew, char *memory, size_t tile_bytes)
      : cache_(cache), step_(step), crew_(crew), memory_(memory), tile_bytes_(tile_bytes) {}

  void write_key(int layer, int head, int dim, int row, const cached *key) const {
    Place<T>(cache_, layer, head, dim, tables(layer).cells[row]).write_key(key, dim);
  }

  void write_value(int layer, int head, int dim, int row, const cached *value) const {
    Place<T>(cache_, layer, head, dim, tables(layer).cells[row]).write_value(value, dim);
  }

  void prefetch(int layer, int head, int dim, int row) const {
    Place<T>(cache_, layer, head, dim, tables(layer).cells[row]).prefetch(dim);
  }

  // A sub-block that begins in this step is read to its end, so the values of its unwritten tokens are set to zero: the
  // memory may hold a NaN of an earlier owner, and NaN x 0 is NaN.
  void clear_fresh(int layer, const PlimsollShape &shape, int sequence) const {
    const int last = step_.first_rows[sequence + 1] - 1, rows = last + 1 - step_.first_rows[sequence];
    const int64_t cell = tables(layer).cells[last];
    const int in = static_cast<int>(cell % SUB);
    if (rows <= in) return;
    for (int h = 0; h < shape.kv_heads; h++)
      for (int ahead = 1; in + ahead < SUB; ahead++)
        Place<T>(cache_, layer, h, shape.head_dim, cell + ahead).clear_value(shape.head_dim);
  }

  // A piece is a sequence's tile of up to ROWS pairs of a row and a query head that share a KV head. Pieces at the end
  // of a sequence, which see most keys, come first. Queries and results are [rows, heads x head_dim], with rows at the
  // distance `stride`; with latent keys, results have heads at the distance `apart` (see PlimsollShape).
  template <class E>
  void attend(int layer, const PlimsollShape &shape, const E *queries, size_t query_stride, E *out,
              size_t out_stride) const {
    const int group = shape.heads / shape.kv_heads;
    int pieces = 0, most = 0;
    for (int s = 0; s < step_.sequences; s++) {
      const int pairs = (step_.first_rows[s + 1] - step_.first_rows[s]) * group;
      pieces += (pairs + ROWS - 1) / ROWS * shape.kv_heads;
      most = pairs > most ? pairs : most;
    }
    crew_.each(pieces, 1, [&](int begin, int end, int member) {
      prepare_attention<T>(most < ROWS ? most : ROWS);
      Cursor here(step_, shape), ahead(step_, shape);
      for (int piece = begin; piece < end; piece++) {
        here.find(piece);
        const bool more = piece + 1 < end && ahead.find(piece + 1);
        const int tile = here.tiles - 1 - here.piece / shape.kv_heads;
        const int first = static_cast<int64_t>(here.pairs) * tile / here.tiles;
        const int last = static_cast<int64_t>(here.pairs) * (tile + 1) / here.tiles;
        const Reader<T> then = read(layer, shape, more ? ahead.sequence : 0, ahead.piece % shape.kv_heads);
        attend_tile(layer, shape, here.sequence, here.piece % shape.kv_heads, first, last, queries, query_stride, out,
                    out_stride, memory_ + tile_bytes_ * member, more ? upcoming(layer, then, shape, ahead) : Upcoming<T>{});
      }
    });
  }

 private:
  const PlimsollCache &cache_;
  const PlimsollStep &step_;
  const Crew &crew_;
  char *memory_;
  size_t tile_bytes_;

  const PlimsollGroup &tables(int layer) const { return step_.groups[cache_.groups[layer]]; }

  // Finds the sequence of a piece; pieces must be requested in order.
  struct Cursor {
    const PlimsollStep &step;
    const PlimsollShape &shape;
    int sequence = -1, passed = 0, pieces = 0;
    int piece = 0, pairs = 0, tiles = 0; // the piece's number within its sequence, and the sequence's pairs and tiles

    Cursor(const PlimsollStep &of, const PlimsollShape &of_layer) : step(of), shape(of_layer) {}

    bool find(int number) {
      while (number >= passed + pieces) {
        if (++sequence >= step.sequences) {
          sequence--;
          return false;
        }
        passed += pieces;
        pairs = (step.first_rows[sequence + 1] - step.first_rows[sequence]) * (shape.heads / shape.kv_heads);
        tiles = (pairs + ROWS - 1) / ROWS;
        pieces = tiles * shape.kv_heads;
      }
      piece = number - passed;
      return true;
    }
  };

  // The first keys of a piece, to be prefetched during the piece before it.
  Upcoming<T> upcoming(int layer, const Reader<T> &reader, const PlimsollShape &shape, const Cursor &at) const {
    if (at.tiles > 1) return {}; // of a prompt: the tiles before have just read them
    const int context = tables(layer).contexts[at.sequence], rows = at.pairs / (shape.heads / shape.kv_heads);
    return {&reader, Window(shape).first_key(context - rows) / SUB, (context - 1) / SUB + 1};
  }

  Reader<T> read(int layer, const PlimsollShape &shape, int sequence, int kv_head) const {
    return {cache_, layer, kv_head, shape.head_dim, tables(layer).blocks + tables(layer).first_blocks[sequence]};
  }

  // Pair i of a sequence and KV head is row i / group and the (i % group)-th query head of that KV head.
  template <class E>
  void attend_tile(int layer, const PlimsollShape &shape, int sequence, int kv_head, int begin, int end,
                   const E *queries, size_t query_stride, E *out, size_t out_stride,
                   char *tile_memory, const Upcoming<T> &after) const {
    const int group = shape.heads / shape.kv_heads, dim = shape.head_dim, count = end - begin;
    const TileMemory<T> memory(tile_memory, dim);
    const int first_row = step_.first_rows[sequence];
    const int start = tables(layer).contexts[sequence] - (step_.first_rows[sequence + 1] - first_row);
    TileRow tile[ROWS];
    size_t rows[ROWS], columns[ROWS];
    for (int r = 0; r < count; r++) {
      const int pair = begin + r, head = kv_head * group + pair % group;
      tile[r] = TileRow(shape, start + pair / group, head);
      rows[r] = first_row + pair / group;
      columns[r] = static_cast<size_t>(head) * dim;
      convert(queries + rows[r] * query_stride + columns[r], memory.query + r * memory.query_stride, dim);
    }
    const Reader<T> reader = read(layer, shape, sequence, kv_head);
    const Window window(shape, shape.whole ? tables(layer).contexts[sequence] - 1 : -1);
    if (shape.latent) {
      auto *keys = reinterpret_cast<cached *>(tile_memory + TileMemory<T>::bytes(dim));
      attend_rows<T>(count, memory, reader, LatentKeys<T>{reader, keys}, window, dim, shape.latent, tile, after);
    } else {
      attend_rows<T>(count, memory, reader, reader, window, dim, dim, tile, after);
    }
    const int summed = shape.latent ? shape.latent : dim, apart = shape.latent ? shape.apart : dim;
    for (int r = 0; r < count; r++) {
      E *to = out + rows[r] * out_stride + columns[r] / dim * apart;
      for (int d = 0; d < summed; d += LANES) store(to + d, load(memory.sums + r * dim + d));
      for (int d = summed; d < apart; d++) to[d] = E{};
    }
  }
};

}  // namespace PLIMSOLL_ISA
