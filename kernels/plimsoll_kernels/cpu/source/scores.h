// Processes scores: scales, caps and hides them, and adds the heads' slopes.
#pragma once

#include "interface.h"
#include "vector.h"

namespace PLIMSOLL_ISA {

// The properties that the rows of a tile share.
struct Window {
  int size, chunk;  // 0: all
  float scale, softcap;
  bool sloped, coarse;
  int end; // the last token of a sequence with bidirectional attention; -1: rows do not see later tokens

  explicit Window(const PlimsollShape &shape, int last = -1)
      : size(shape.window),
        chunk(shape.chunk),
        scale(shape.scale),
        softcap(shape.softcap),
        sloped(shape.slopes),
        coarse(shape.coarse),
        end(last) {}

  // A score: the product of a query and a key, scaled and capped.
  floats score(floats product) const {
    const floats scaled = product * scale;
    return softcap > 0 ? softcap * hyperbolic_tangent(scaled / softcap) : scaled;
  }

  int first_key(int position) const {
    const int first = size > 0 && position >= size ? position - size + 1 : 0;
    if (chunk == 0) return first;
    const int begins = position / chunk * chunk;
    return begins > first ? begins : first;
  }

  int last_key(int position) const {
    if (end < 0) return position;
    return size > 0 && position + size <= end ? position + size - 1 : end;
  }
};

// A row of a tile: its position, and its head's slope.
struct TileRow {
  int position;
  float slope, sink;

  TileRow() = default;
  TileRow(const PlimsollShape &shape, int at, int head)
      : position(at), slope(shape.slopes ? shape.slopes[head] : 0), sink(shape.sinks ? shape.sinks[head] : -INFINITE) {}
};

// The nearest bfloat16.
inline floats rounded(floats x) {
  uint16_t narrow[LANES];
  store(narrow, x);
  return load(narrow);
}

// scores [from, to) of keys from `key` on += slope x (key's position - row's); if `coarse`, scale x slope x key's
// position instead, with product and factors in bfloat16 (as in Falcon).
inline void add_slope(const Window &window, const TileRow &row, float *scores, int from, int to, int key) {
  const floats slope = window.coarse ? rounded(broadcast(row.slope)) : broadcast(row.slope);
  for (int i = from; i < to; i += LANES) {
    const ints keys = LANE_NUMBERS + (key + i);
    const floats added = window.coarse
                             ? window.scale * rounded(slope * rounded(__builtin_convertvector(keys, floats)))
                             : slope * __builtin_convertvector(keys - row.position, floats);
    store(scores + i, load(scores + i) + added);
  }
}

}  // namespace PLIMSOLL_ISA
