// The processor's tiles (AMX): eight registers of up to 16 rows of 64 bytes, and products of two of them.
//
// Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18. Linux grants them to a process on
// request (choose.cpp). Their shapes are thread state, which a thread sets before it uses tiles and releases when it
// rests: with it, every context switch saves and restores 8 KiB more.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "crew.h"

namespace PLIMSOLL_ISA {

// The size of a tile; a word is 4 bytes.
constexpr int TILE_ROWS = 16, TILE_WORDS = 16;

// The operand of `ldtilecfg`: each tile's bytes a row, and rows.
struct alignas(64) Shapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};

  constexpr void set(int tile, int rows_, int words) {
    rows[tile] = static_cast<uint8_t>(rows_);
    bytes[tile] = static_cast<uint16_t>(words * 4);
  }
};

// For lambdas, because code with tiles must not make calls.
#define ALWAYS_INLINE __attribute__((always_inline))

inline thread_local Shapes current_shapes{.palette = 0};

inline void release_tiles() {
  if (!current_shapes.palette) return;
  current_shapes.palette = 0;
  asm volatile("tilerelease");
}

// Gives the calling thread's tiles these shapes, until it rests. Their contents are lost.
inline void shape_tiles(const Shapes &shapes) {
  if (!std::memcmp(&shapes, &current_shapes, sizeof shapes)) return;
  plimsoll::at_rest(release_tiles);
  current_shapes = shapes;
  asm volatile("ldtilecfg %0" : : "m"(current_shapes));
}

template <int TILE>
inline __attribute__((always_inline)) void tile_zero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(TILE));
}

// Rows are at a distance of `stride` bytes.
template <int TILE>
inline __attribute__((always_inline)) void tile_load(const void *from, size_t stride) {
  asm volatile("tileloadd (%1,%2,1), %%tmm%c0" : : "i"(TILE), "r"(from), "r"(stride) : "memory");
}

template <int TILE>
inline __attribute__((always_inline)) void tile_store(void *to, size_t stride) {
  asm volatile("tilestored %%tmm%c0, (%1,%2,1)" : : "i"(TILE), "r"(to), "r"(stride) : "memory");
}

// Calls use(0), ... use(COUNT - 1) with constant numbers, because instructions name their tiles.
template <int COUNT, int FIRST = 0, class Use>
inline __attribute__((always_inline)) void each_tile(const Use &use) {
  if constexpr (FIRST < COUNT) {
    use(std::integral_constant<int, FIRST>{});
    each_tile<COUNT, FIRST + 1>(use);
  }
}

}  // namespace PLIMSOLL_ISA
