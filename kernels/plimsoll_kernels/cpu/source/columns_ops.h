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

// target = norm(source) x silu(gate) where the gate comes `after`, else norm(source x silu(gate)): root mean squares, each
// of `groups` of columns by itself.
struct PlimsollGatedNorm {
  const float *weight;  // [width]
  struct PlimsollPart source, gate;
  int32_t target, width, groups, after;
  float eps;
};

// h = e^(d A) h + d x B^T, y = h C + D x, of each head, with d = softplus(times + step_bias) cut to [least, most]. `mixed`
// has x [heads, head_dim], then B and C [groups, width]; `times` a number for each head; what is kept of a sequence is h,
// floats [heads, head_dim, width].
struct PlimsollDualScan {
  const float *decay, *skip, *step_bias;  // [heads] A, D and that
  struct PlimsollPart mixed, times;
  int32_t state, target, heads, head_dim, groups, width;
  float least, most;
};

// h = e h, h += k (b (v - h^T k))^T, y = h^T q, of each head of values, with e = e^(A softplus(times + step_bias)) and
// b = sigmoid(writes). `mixed` has queries and keys [key_heads, key_dim], which get length 1, queries over the root of
// key_dim, then values [value_heads, value_dim]. Heads that share one of keys lie side by side or, `in_turns`, take turns.
// What is kept of a sequence is h, floats [value_heads, key_dim, value_dim].
struct PlimsollDeltaRule {
  const float *decay, *step_bias;  // [value_heads] A and that
  struct PlimsollPart mixed, writes, times;
  int32_t state, target, key_heads, value_heads, key_dim, value_dim, in_turns;
};

enum { PLIMSOLL_KEY_DIM = 256 };  // at most

// h = e^(d A) h + d x B, y = h C + D x, of each column, with d = softplus(times + step_bias). `inputs` are B, `outputs` C
// [count]; what is kept of a sequence is h, floats [count, width].
struct PlimsollSelectiveScan {
  const float *decay;             // A [count, width]
  const float *skip, *step_bias;  // [width] D and that
  struct PlimsollPart source, times, inputs, outputs;
  int32_t state, target, width, count;
};

enum { PLIMSOLL_STATES = 256 };  // `count` at most

// h = a h + root(1 - a^2) i x, y = h, of each column, with a = e^(decay r), and h = i x at a first token; the gates are
// r = sigmoid(x recurrent + recurrent_bias), block by block, and i alike. What is kept of a sequence is h, floats [width].
struct PlimsollGatedRecurrence {
  const float *decay;                // [width]
  const float *recurrent, *inputs;   // [heads, width / heads, width / heads]
  const float *recurrent_bias, *inputs_bias;  // [width]
  struct PlimsollPart source;
  int32_t state, gates, target, width, heads;  // `gates`: floats [rows, 2, width], which nobody else reads
};

}  // extern "C"
