// The layout of packed weights in memory, and of the rows that they are multiplied with.
//
// A weight [N, K] is stored in panels of PANEL columns: panel p has, for each word of K in order, PANEL words, one for
// each of the rows p * PANEL ... of W. Columns beyond N, and the end of the last word or step of STEP words, are zeros.
#pragma once

#include "element.h"

namespace PLIMSOLL_ISA {

constexpr int PANEL = 2 * LANES;

// Words of a row of `k` values, in whole steps.
template <class T>
constexpr int words(int k) {
  constexpr int VALUES = T::PAIR * T::STEP;
  return (k + VALUES - 1) / VALUES * T::STEP;
}

template <class T>
constexpr size_t panel_elements(int k) {
  return static_cast<size_t>(words<T>(k)) * PANEL * T::PAIR;
}

// The distance of rows is an odd number of cache lines, so that the rows of a tile do not map to one set of the cache.
template <class T>
constexpr size_t padded(int width) {
  constexpr size_t line = 64 / sizeof(typename T::operand);
  return ((static_cast<size_t>(width) + line - 1) / line | 1) * line;
}

// Cache lines of a panel for one word.
template <class T>
constexpr int panel_lines = PANEL * T::PAIR * sizeof(typename T::weight) / 64;

constexpr int panels(int n) { return (n + PANEL - 1) / PANEL; }

// Panels of two interleaved weights: each panel has a vector of both.
constexpr int gated_panels(int n) { return (n + LANES - 1) / LANES; }

// Packs rows [first, first + LANES) of a weight into vector `half` of a panel; rows beyond `n` are zeros.
template <class T>
void pack_half(const typename T::weight *weight, int first, int n, int k, typename T::weight *panel, int half) {
  for (int lane = 0; lane < LANES; lane++) {
    const bool real = first + lane < n;
    const typename T::weight *row = weight + static_cast<size_t>(first + lane) * k;
    for (int i = 0; i < words<T>(k) * T::PAIR; i++) {
      const size_t at = (static_cast<size_t>(i / T::PAIR) * PANEL + half * LANES + lane) * T::PAIR + i % T::PAIR;
      panel[at] = real && i < k ? row[i] : typename T::weight{};
    }
  }
}

// The first word of a row of a packed weight; the next words are at a distance of PANEL words each.
template <class T>
const typename T::weight *packed_row(const typename T::weight *packed, int64_t row, int k) {
  return packed + row / PANEL * panel_elements<T>(k) + row % PANEL * T::PAIR;
}

}  // namespace PLIMSOLL_ISA
