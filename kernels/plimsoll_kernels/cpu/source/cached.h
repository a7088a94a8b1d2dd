// The paged cache as products read it.
//
// It interleaves SUB tokens: keys [head_dim / PAIR][SUB] words, values [SUB / PAIR][head_dim] words. A block has
// block_size / SUB of these sub-blocks.
#pragma once

#include "element.h"
#include "interface.h"

namespace PLIMSOLL_ISA {

constexpr int SUB = 16;

// The addresses of one token's key and value, and the distances between their elements.
template <class T>
struct Place {
  typename T::cached *keys, *values;

  Place(const PlimsollCache &cache, int layer, int head, int head_dim, int64_t cell) {
    const int64_t block = cell / cache.block_size, offset = cell % cache.block_size;
    const int64_t base = head * cache.head_strides[layer] + block * cache.block_strides[layer] +
                         offset / SUB * (static_cast<int64_t>(SUB) * head_dim);
    const int in = static_cast<int>(offset % SUB);
    keys = static_cast<typename T::cached *>(cache.keys[layer]) + base + in * T::PAIR;
    values = static_cast<typename T::cached *>(cache.values[layer]) + base +
             static_cast<int64_t>(in / T::PAIR) * head_dim * T::PAIR + in % T::PAIR;
  }

  void write_key(const typename T::cached *from, int head_dim) const {
    for (int d = 0; d < head_dim; d += T::PAIR)
      std::memcpy(keys + static_cast<size_t>(d) * SUB, from + d, sizeof(typename T::cached) * T::PAIR);
  }
  void write_value(const typename T::cached *from, int head_dim) const {
    for (int d = 0; d < head_dim; d++) values[d * T::PAIR] = from[d];
  }
  // Its lines are scattered over the whole sub-block, and without a prefetch each store would wait for its line.
  void prefetch(int head_dim) const {
    for (int d = 0; d < head_dim; d += T::PAIR) prefetch_to_write(keys + static_cast<size_t>(d) * SUB);
    constexpr int LINE = 64 / sizeof(typename T::cached) / T::PAIR;
    for (int d = 0; d < head_dim; d += LINE) prefetch_to_write(values + d * T::PAIR);
  }
  void clear_value(int head_dim) const {
    for (int d = 0; d < head_dim; d++) values[d * T::PAIR] = typename T::cached{};
  }
};

// A sequence's blocks of one layer and head.
template <class T>
struct Reader {
  const typename T::cached *keys, *values;
  const int32_t *blocks;
  int subs_per_block;
  int64_t block_elements, sub_elements;

  Reader(const PlimsollCache &cache, int layer, int head, int head_dim, const int32_t *table)
      : blocks(table),
        subs_per_block(cache.block_size / SUB),
        block_elements(cache.block_strides[layer]),
        sub_elements(static_cast<int64_t>(SUB) * head_dim) {
    const int64_t base = head * cache.head_strides[layer];
    keys = static_cast<const typename T::cached *>(cache.keys[layer]) + base;
    values = static_cast<const typename T::cached *>(cache.values[layer]) + base;
  }

  // Calls work(begin, end) for ranges of sub-blocks whose keys can be read together.
  template <class Work>
  void each(int begin, int end, const Work &work) const {
    work(begin, end);
  }

  const char *values_of(int sub) const { return reinterpret_cast<const char *>(values + at(sub)); }

  int64_t at(int sub) const {
    return blocks[sub / subs_per_block] * block_elements + sub % subs_per_block * sub_elements;
  }
};

// The keys that are read next. Sub-blocks are scattered, so the hardware prefetcher cannot predict them, and prefetches
// of all of them at once would queue up. So each product with values prefetches the keys of one.
template <class T>
struct Upcoming {
  const Reader<T> *reader = nullptr;
  int next = 0, end = 0;

  const char *take(const typename T::cached *otherwise) {
    return reinterpret_cast<const char *>(next < end ? reader->keys + reader->at(next++) : otherwise);
  }
};

}  // namespace PLIMSOLL_ISA
