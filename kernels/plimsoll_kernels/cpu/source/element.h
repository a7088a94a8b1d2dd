// The types of weights, activations and cache, and the product of two of them.
//
// A model's embedding and hidden states are `element`s, packed weights `weight`s, cached keys and values `cached`, and
// the input rows of products `operand`s. PAIR neighbours make a *word*. One side of a product is the words of a row;
// the other is laid out so that LANES words, one for each column, are contiguous. A step of a product takes STEP words
// of each: one in vectors (in several PARTS, one after the other: row() and column() return a part's factors), a tile's
// width in tiles.
#pragma once

#include "vector.h"

namespace PLIMSOLL_ISA {

struct Float32 {
  using element = float;
  using weight = float;
  using operand = float;
  using cached = float;
  static constexpr int PAIR = 1, PARTS = 1, STEP = 1;

  static inline float row(const char *word, int) { return *reinterpret_cast<const float *>(word); }
  static inline floats column(const weight *words, int) { return load(words); }
  static inline floats multiply_add(floats sum, float row, floats column) { return sum + row * column; }
};

#if defined(__AMX_BF16__)

// The processor multiplies tiles of 16 words and this many rows or columns.
struct BFloat16 {
  using element = uint16_t;
  using weight = uint16_t;
  using cached = uint16_t;
  using operand = uint16_t;
  static constexpr int PAIR = 2, STEP = 16;

  // sums += rows x columns: for each sum first the products of even values, then of odd ones, then both are added to
  // it.
  template <int SUMS, int ROWS, int COLUMNS>
  static inline __attribute__((always_inline)) void multiply_tiles() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(SUMS), "i"(ROWS), "i"(COLUMNS));
  }
};

#elif defined(__AVX512BF16__)

// The processor multiplies pairs: rows are rounded to bfloat16 as well.
struct BFloat16 {
  using element = uint16_t;
  using weight = uint16_t;
  using cached = uint16_t;
  using operand = uint16_t;
  static constexpr int PAIR = 2, PARTS = 1, STEP = 1;

  static inline int row(const char *word, int) { return *reinterpret_cast<const int *>(word); }
  static inline __m512i column(const weight *words, int) { return _mm512_loadu_si512(words); }
  static inline floats multiply_add(floats sum, int row, __m512i column) {
    const __m512i spread = _mm512_set1_epi32(row);
    return bits<floats>(_mm512_dpbf16_ps(bits<__m512>(sum), bits<__m512bh>(spread), bits<__m512bh>(column)));
  }
};

#else

// sum + row x column, rounded once.
inline floats add_product(floats sum, float row, floats column) {
#if LANES == 8
  // Updated in place: otherwise the compiler renames sums, of which there are 12 in 16 registers, and with two parts of
  // a word spills some of them.
  const __m256 spread = _mm256_set1_ps(row);
  asm("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(spread), "x"(column));
  return sum;
#else
  return sum + row * column;
#endif
}

// Weights and cache are read as bfloat16, half the bytes of float32, and converted in registers, which is exact. Rows
// stay float32, whose factors a product reads directly from memory; rounding them would cost time and accuracy.
struct BFloat16 {
  using element = uint16_t;
  using weight = uint16_t;
  using cached = uint16_t;
  using operand = float;
  static constexpr int PAIR = 2, PARTS = 2, STEP = 1;

  static inline float row(const char *word, int part) { return reinterpret_cast<const float *>(word)[part]; }
  static inline floats column(const weight *words, int part) {
    ints both;
    std::memcpy(&both, words, sizeof both);
    return bits<floats>(part == 0 ? both << 16 : both & static_cast<int>(0xffff0000));
  }
  static inline floats multiply_add(floats sum, float row, floats column) { return add_product(sum, row, column); }
};

#endif

// Converts `count` values: rounds, widens or copies them.
template <class From, class To>
inline void convert(const From *from, To *to, int count) {
  if constexpr (sizeof(From) == sizeof(To)) {
    std::memcpy(to, from, sizeof(To) * count);
  } else {
    int i = 0;
    for (; i + LANES <= count; i += LANES) store(to + i, load(from + i));
    for (; i < count; i++) put(to + i, widen(from[i]));
  }
}

}  // namespace PLIMSOLL_ISA
