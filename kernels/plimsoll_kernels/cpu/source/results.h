// The destinations of a product's sums: they process a tile with its bias while it is in registers.
#pragma once

#include "activation.h"
#include "product.h"

namespace PLIMSOLL_ISA {

// Adds the bias to a tile's sums and passes them on in whole vectors or, at the end of a weight, one by one.
template <int R, class Out>
inline void spread(const floats (&sums)[R][2], const float *bias, int column, int columns, const Out &out) {
  for (int v = 0; v < 2; v++) {
    const int first = column + v * LANES;
    if (first + LANES <= columns) {
      const floats b = bias ? load(bias + first) : floats{};
      for (int r = 0; r < R; r++) out(r, first, sums[r][v] + b);
    } else {
      for (int i = first; i < columns; i++)
        for (int r = 0; r < R; r++) out(r, i, sums[r][v][i - first] + (bias ? bias[i] : 0.0f));
    }
  }
}

// Prefetches `width` values of `rows` rows, at a distance of `stride` values, to write them.
template <class E>
inline void prefetch_rows(const E *first, size_t stride, int rows, int width) {
  for (int r = 0; r < rows; r++)
    for (size_t at = 0; at < width * sizeof(E); at += 64)
      prefetch_to_write(reinterpret_cast<const char *>(first + r * stride) + at);
}

// out = x W^T + b in float32, clamped to [-limit, limit], or out += it x scale.
template <bool ADD>
struct ToFloats {
  float *out;
  size_t stride;
  const float *bias;
  int columns;
  float scale = 1, limit = INFINITE;

  struct Panel {
    const ToFloats *to;
    int panel;

    void prefetch(int row, int rows) const {
      prefetch_rows(to->out + row * to->stride + panel * PANEL, to->stride, rows, PANEL);
    }
    template <int R>
    void operator()(int row, const floats (&sums)[R][2]) const {
      const ToFloats &t = *to;
      struct {
        const ToFloats &t;
        float *base;
        void operator()(int r, int i, floats v) const {
          float *at = base + r * t.stride + i;
          const floats low = broadcast(-t.limit), high = broadcast(t.limit);
          store(at, ADD ? load(at) + v * t.scale : v > high ? high : v < low ? low : v);
        }
        void operator()(int r, int i, float v) const {
          float *at = base + r * t.stride + i;
          *at = ADD ? *at + v * t.scale : v > t.limit ? t.limit : v < -t.limit ? -t.limit : v;
        }
      } out{t, t.out + row * t.stride};
      spread<R>(sums, t.bias, panel * PANEL, t.columns, out);
    }
  };

  Panel operator()(int panel) const { return {this, panel}; }
};

// out = activation(gate) x up, or clamped() of both, as operands: a panel's first vector belongs to the gate, its
// second to the other weight.
template <class T>
struct ToGated {
  typename T::operand *out;
  size_t stride;
  const float *bias;
  int columns, activation;
  float alpha = 0, limit = 0;

  struct Panel {
    const ToGated *to;
    int panel;

    void prefetch(int row, int rows) const {
      prefetch_rows(to->out + row * to->stride + panel * LANES, to->stride, rows, LANES);
    }
    template <int R>
    void operator()(int row, const floats (&sums)[R][2]) const {
      const ToGated &t = *to;
      const int first = panel * LANES;
      const int real = t.columns - first < LANES ? t.columns - first : LANES;
      float gate_bias[LANES] = {}, up_bias[LANES] = {};
      if (t.bias) {
        std::memcpy(gate_bias, t.bias + first, sizeof(float) * real);
        std::memcpy(up_bias, t.bias + t.columns + first, sizeof(float) * real);
      }
      for (int r = 0; r < R; r++) {
        const floats gate = sums[r][0] + load(gate_bias), up = sums[r][1] + load(up_bias);
        const floats value =
            t.limit > 0 ? clamped(gate, up, t.alpha, t.limit) : activated(t.activation, gate) * up;
        typename T::operand *at = t.out + (row + r) * t.stride + first;
        if (real == LANES)
          store(at, value);
        else
          for (int i = 0; i < real; i++) put(at + i, value[i]);
      }
    }
  };

  Panel operator()(int panel) const { return {this, panel}; }
};

// out = activation(x W^T + b), as operands.
template <class T>
struct ToOperands {
  typename T::operand *out;
  size_t stride;
  const float *bias;
  int columns, activation;

  struct Panel {
    const ToOperands *to;
    int panel;

    void prefetch(int row, int rows) const {
      prefetch_rows(to->out + row * to->stride + panel * PANEL, to->stride, rows, PANEL);
    }
    template <int R>
    void operator()(int row, const floats (&sums)[R][2]) const {
      const ToOperands &t = *to;
      struct {
        const ToOperands &t;
        typename T::operand *base;
        void operator()(int r, int i, floats v) const { store(base + r * t.stride + i, activated(t.activation, v)); }
        void operator()(int r, int i, float v) const {
          put(base + r * t.stride + i, activated(t.activation, broadcast(v))[0]);
        }
      } out{t, t.out + row * t.stride};
      spread<R>(sums, t.bias, panel * PANEL, t.columns, out);
    }
  };

  Panel operator()(int panel) const { return {this, panel}; }
};

}  // namespace PLIMSOLL_ISA
