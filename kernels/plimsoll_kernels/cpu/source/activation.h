// Activations by their number in the interface.
#pragma once

#include "interface.h"
#include "vector.h"

namespace PLIMSOLL_ISA {

inline floats activated(int activation, floats x) {
  switch (activation) {
    case PLIMSOLL_ACTIVATION_SILU: return silu(x);
    case PLIMSOLL_ACTIVATION_GELU_TANH: return gelu_tanh(x);
    case PLIMSOLL_ACTIVATION_GELU: return gelu(x);
    case PLIMSOLL_ACTIVATION_RELU: return relu(x);
    case PLIMSOLL_ACTIVATION_RELU2: return relu(x) * relu(x);
    case PLIMSOLL_ACTIVATION_SIGMOID: return 1.0f / (exponential(-x) + 1.0f);
  }
  return x;
}

// gate x sigmoid(alpha x gate) x (up + 1), with the gate limited to at most `limit` and up to [-limit, limit].
inline floats clamped(floats gate, floats up, float alpha, float limit) {
  const floats low = broadcast(-limit), high = broadcast(limit);
  gate = gate > high ? high : gate;
  up = up > high ? high : up < low ? low : up;
  return gate / (exponential(gate * -alpha) + 1.0f) * (up + 1.0f);
}

}  // namespace PLIMSOLL_ISA
