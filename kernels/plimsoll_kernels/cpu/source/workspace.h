// The memory of a step: the places of a model's values, each thread's memory for a tile of queries, and that of
// experts.
#pragma once

#include "attend.h"
#include "experts.h"
#include "interface.h"
#include "paged.h"

namespace PLIMSOLL_ISA {

// The layout depends on the number of rows only. Rows of floats are dense; rows of operands have the distance that
// products need.
template <class T>
struct Workspace {
  using operand = typename T::operand;

  char *tiles; // for each thread
  size_t tile_bytes, bytes;
  ExpertMemory<T> experts;

  Workspace(const PlimsollModel &model, int rows, int threads, char *memory) : model_(model) {
    char *at = memory;
    auto take = [&](size_t size) {
      char *here = at;
      at += (size + 63) / 64 * 64;
      return here;
    };
    for (int i = 0; i < model.num_places; i++) {
      const PlimsollPlace &place = model.places[i];
      const size_t size = place.operands ? sizeof(operand) : sizeof(float);
      strides_[i] = place.operands ? padded<T>(place.width) : static_cast<size_t>(place.width);
      places_[i] = take(rows * strides_[i] * size);
    }
    tile_bytes = 0;
    for (int i = 0; i < model.num_ops; i++)
      if (model.ops[i].kind == PLIMSOLL_KIND_ATTEND && tile_bytes_of<T>(model.ops[i].attend.shape) > tile_bytes)
        tile_bytes = tile_bytes_of<T>(model.ops[i].attend.shape);
    tiles = take(tile_bytes * threads);
    experts = ExpertMemory<T>::of(model, rows, take);
    bytes = at - memory;
  }

  bool has_operands(int place) const { return model_.places[place].operands; }
  size_t stride(int place) const { return strides_[place]; }
  float *floats_at(int place, int row = 0) const {
    return reinterpret_cast<float *>(places_[place]) + row * strides_[place];
  }
  operand *operands_at(int place, int row = 0) const {
    return reinterpret_cast<operand *>(places_[place]) + row * strides_[place];
  }

  // Products read from a row's end to the end of its last step, so these values must be finite.
  void clear_ends(int row) const {
    for (int i = 0; i < model_.num_places; i++)
      if (has_operands(i))
        for (size_t at = model_.places[i].narrowest; at < strides_[i]; at++) operands_at(i, row)[at] = operand{};
  }

 private:
  const PlimsollModel &model_;
  size_t strides_[PLIMSOLL_PLACES];
  char *places_[PLIMSOLL_PLACES];
};

}  // namespace PLIMSOLL_ISA
