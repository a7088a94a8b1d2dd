// What weights, activations and the cache are made of, and the product of two of them.
//
// A *word* is what one step of a product takes from a row: one float, or two neighbouring bfloat16. The other operand
// lies so that LANES words, one for each column, are contiguous.
#pragma once

#include "vector.h"

namespace PLIMSOLL_ISA {

struct Float32 {
  using element = float;
  using word = float;
  static constexpr int PAIR = 1;

  static inline floats multiply_add(floats sum, word row, const element *columns) {
    return sum + row * load(columns);
  }
};

#if defined(__AVX512BF16__)
struct BFloat16 {
  using element = uint16_t;
  using word = uint32_t;
  static constexpr int PAIR = 2;

  static inline floats multiply_add(floats sum, word row, const element *columns) {
    const __m512i both = _mm512_loadu_si512(columns);
    const __m512i spread = _mm512_set1_epi32(static_cast<int>(row));
    return bits<floats>(_mm512_dpbf16_ps(bits<__m512>(sum), bits<__m512bh>(spread), bits<__m512bh>(both)));
  }
};
#endif

}  // namespace PLIMSOLL_ISA
