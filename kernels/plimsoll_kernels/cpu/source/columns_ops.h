// Records of the ops over columns of rows, and of those that keep something of a sequence (interface.h has the others).
#pragma once

#include <cstdint>

extern "C" {

// Columns of what lies at a place, from `first` on.
struct PlimsollPart {
  int32_t place, first;
};

// target = source x factors, column by column.
struct PlimsollScale {
  const float *factors;  // [width]; null: all are 1
  struct PlimsollPart source;
  int32_t target, width;
};

// target = source x activation(gate); the source may be operands.
struct PlimsollMultiply {
  struct PlimsollPart source, gate;
  int32_t target, width;
  int32_t activation;  // see PlimsollActivation
};

// target[t] = activation(sum over k of weight[k] x source[t - taps + 1 + k], + bias), of elements; what is kept of a
// sequence are its last rows of the source, elements [taps - 1, width].
struct PlimsollConvolve {
  const float *weight;  // [taps, width]
  const float *bias;    // [width], null: none
  struct PlimsollPart source;
  int32_t state, target, width, taps;
  int32_t activation;  // see PlimsollActivation
};

enum { PLIMSOLL_TAPS = 16 };  // at most

}  // extern "C"
