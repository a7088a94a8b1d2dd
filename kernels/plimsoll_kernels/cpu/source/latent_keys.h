// Keys of a layer whose keys are its values: reordered for a product, sub-block by sub-block, in memory outside the
// cache.
#pragma once

#include "cached.h"
#include "vector.h"

namespace PLIMSOLL_ISA {

using words_of = uint32_t __attribute__((vector_size(LANES * 4)));

// Transposes LANES rows of LANES words in log2 LANES rounds of perfect shuffles.
inline void transpose(words_of (&rows)[LANES]) {
  for (int round = 1; round < LANES; round *= 2) {
    words_of next[LANES];
    for (int i = 0; i < LANES / 2; i++) {
      const words_of a = rows[i], b = rows[i + LANES / 2];
#if LANES == 16
      next[2 * i] = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      next[2 * i + 1] = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#else
      next[2 * i] = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
      next[2 * i + 1] = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#endif
    }
    for (int i = 0; i < LANES; i++) rows[i] = next[i];
  }
}

// The even words of two vectors (`evens`), or the odd ones.
inline words_of evens(words_of a, words_of b) {
#if LANES == 16
  return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
#else
  return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14);
#endif
}
inline words_of odds(words_of a, words_of b) {
#if LANES == 16
  return __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
#else
  return __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15);
#endif
}

inline words_of load_words(const void *p) {
  words_of v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// Values of a sub-block, [SUB][head_dim], as keys, [head_dim][SUB].
inline void keys_of_values(const float *values, int head_dim, float *keys) {
  for (int d = 0; d < head_dim; d += LANES)
    for (int token = 0; token < SUB; token += LANES) {
      words_of rows[LANES];
      for (int i = 0; i < LANES; i++) rows[i] = load_words(values + static_cast<size_t>(token + i) * head_dim + d);
      transpose(rows);
      for (int i = 0; i < LANES; i++)
        std::memcpy(keys + static_cast<size_t>(d + i) * SUB + token, &rows[i], sizeof rows[i]);
    }
}

// The same for pairs: [SUB / 2][head_dim] words of two tokens become [head_dim / 2][SUB] words of two dimensions.
inline void keys_of_values(const uint16_t *values, int head_dim, uint16_t *keys) {
  int d = 0;
  for (; d + 2 * LANES <= head_dim; d += 2 * LANES)
    for (int token = 0; token < SUB; token += LANES) {
      words_of rows[LANES];
      for (int i = 0; i < LANES; i += 2) {
        const uint16_t *from = values + (static_cast<size_t>(token + i) / 2 * head_dim + d) * 2;
        const words_of first = load_words(from), second = load_words(from + 2 * LANES);
        const words_of even = evens(first, second), odd = odds(first, second);
        rows[i] = (even & 0xffff) | (odd << 16);
        rows[i + 1] = (even >> 16) | (odd & 0xffff0000);
      }
      transpose(rows);
      for (int i = 0; i < LANES; i++)
        std::memcpy(keys + (static_cast<size_t>(d / 2 + i) * SUB + token) * 2, &rows[i], sizeof rows[i]);
    }
  for (; d < head_dim; d++)
    for (int token = 0; token < SUB; token++)
      keys[(static_cast<size_t>(d / 2) * SUB + token) * 2 + d % 2] =
          values[(static_cast<size_t>(token / 2) * head_dim + d) * 2 + token % 2];
}

// Has the interface of a Reader's keys, several sub-blocks at a time.
template <class T>
struct LatentKeys {
  static constexpr int SUBS_AT_ONCE = 4;

  const Reader<T> &reader;
  typename T::cached *keys;
  mutable int first = 0;

  static size_t bytes(int head_dim) { return sizeof(typename T::cached) * SUBS_AT_ONCE * SUB * head_dim; }

  int64_t at(int sub) const { return (sub - first) * reader.sub_elements; }
  const char *values_of(int sub) const { return reader.values_of(sub); }

  template <class Work>
  void each(int begin, int end, const Work &work) const {
    for (first = begin; first < end; first += SUBS_AT_ONCE) {
      const int last = first + SUBS_AT_ONCE < end ? first + SUBS_AT_ONCE : end;
      for (int sub = first; sub < last; sub++)
        keys_of_values(reader.values + reader.at(sub), static_cast<int>(reader.sub_elements / SUB), keys + at(sub));
      work(first, last);
    }
  }
};

}  // namespace PLIMSOLL_ISA
