// Records of the ops of latent attention, in which a layer keeps one vector a token: `rank` numbers of which keys and
// values of all heads are made, and behind them `turned` ones, which turn and which all keys share.
#pragma once

#include <cstdint>

extern "C" {

// A row's vector, floats [rows, rank + turned] at `source`, into the cache: its first `rank` numbers normed, the others
// turned.
struct PlimsollLatent {
  const float *weight;  // of the norm, [rank]
  int32_t layer, source, rank, turned;
  int32_t norm;  // see PlimsollNormed
  int32_t rope;  // which table of the step
  int32_t pairs;
  float eps;
};

// Queries, floats [rows, heads, plain + turned] at `source`, as they are compared with vectors: operands [rows, heads,
// rank + turned] at `target`. At `between` lie operands [rows, heads, apart], which nobody else reads.
struct PlimsollAbsorb {
  const void *weight;  // packed [rank, plain] of each head, one after the other
  int32_t source, between, target;
  int32_t heads, plain, rank, turned;
  int32_t apart;  // a whole number of a tile's steps
  int32_t rope, pairs, growth_offset;
  float growth, growth_every;  // see PlimsollHeads
};

// What was attended to, operands [rows, heads, apart] at `source`, as values: operands [rows, heads, value] at `target`.
struct PlimsollExpand {
  const void *weight;  // packed [value, rank] of each head, one after the other
  int32_t source, target;
  int32_t heads, rank, value, apart;
};

}  // extern "C"
