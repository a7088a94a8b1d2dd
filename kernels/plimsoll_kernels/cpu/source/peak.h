// Measures the operations a second of independent products in registers.
#pragma once

#include "clock.h"
#include "product.h"

namespace PLIMSOLL_ISA {

#if defined(__AMX_BF16__)

template <class T>
double multiply_registers(int times) {
  shape_tiles(product_shapes(TILE_ROWS));
  each_tile<COLUMNS_TILE + 1>([&](auto i) ALWAYS_INLINE { tile_zero<i>(); });
  for (int i = 0; i < times; i++)
    each_tile<4>([&](auto c) ALWAYS_INLINE { T::template multiply_tiles<c, 4 + c % 2, COLUMNS_TILE>(); });
  return times * 4.0 * TILE_ROWS * TILE_WORDS * TILE_WORDS * T::PAIR * 2;
}

#else

template <class T>
double multiply_registers(int times) {
  // Enough sums to hide a product's latency, and few enough for sixteen registers.
  constexpr int CHAINS = 12;
  alignas(64) typename T::element words[LANES * T::PAIR] = {};
  alignas(8) typename T::operand word[T::PAIR] = {};
  // The values must be unknown to the compiler, which would remove products of zeros.
  asm volatile("" : : "r"(words), "r"(word) : "memory");
  const auto column = T::column(words, 0);
  const auto row = T::row(reinterpret_cast<const char *>(word), 0);
  floats sums[CHAINS];
#pragma GCC unroll 16
  for (int c = 0; c < CHAINS; c++) sums[c] = floats{};
  for (int i = 0; i < times; i++) {
#pragma GCC unroll 16
    for (int c = 0; c < CHAINS; c++) sums[c] = T::multiply_add(sums[c], row, column);
    // All at once, so that none of them is removed or moved to memory.
#pragma GCC unroll 16
    for (int c = 0; c < CHAINS; c++) asm volatile("" : "+x"(sums[c]));
  }
  return times * 2.0 * CHAINS * LANES * T::PAIR / T::PARTS;
}

#endif

// The sum over all threads, each at its best.
template <class T>
double peak(int32_t threads) {
  constexpr int TIMES = 4000, REPEATS = 10, MOST = 256;
  double rates[MOST] = {};
  const Crew crew(threads < MOST ? threads : MOST);
  crew.each(crew.threads(), 1, [&](int begin, int end, int) {
    for (int i = begin; i < end; i++)
      for (int repeat = 0; repeat < REPEATS; repeat++) {
        const double start = seconds_now(), operations = multiply_registers<T>(TIMES);
        const double rate = operations / (seconds_now() - start);
        rates[i] = rate > rates[i] ? rate : rates[i];
      }
  });
  double sum = 0;
  for (int i = 0; i < crew.threads(); i++) sum += rates[i];
  return sum;
}

}  // namespace PLIMSOLL_ISA
