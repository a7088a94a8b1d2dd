// Norms over a row of floats, and the destinations of their results.
#pragma once

#include "interface.h"
#include "vector.h"

namespace PLIMSOLL_ISA {

// x / rms(x) x weight, each row in float32 (Zhang and Sennrich, 2019).
template <class Out>
inline void normalise(const float *x, const float *weight, int width, float eps, const Out &out) {
  floats squares{};
  int i = 0;
  for (; i + LANES <= width; i += LANES) squares += load(x + i) * load(x + i);
  float total = sum(squares);
  for (; i < width; i++) total += x[i] * x[i];
  const float scale = 1.0f / std::sqrt(total / static_cast<float>(width) + eps);
  for (i = 0; i + LANES <= width; i += LANES) out(i, load(x + i) * scale * load(weight + i));
  for (; i < width; i++) out(i, x[i] * scale * weight[i]);
}

// (x - mean) / deviation x weight + bias; bias null: none (Ba et al., 2016).
template <class Out>
inline void normalise_layer(const float *x, const float *weight, const float *bias, int width, float eps,
                            const Out &out) {
  floats values{}, squares{};
  int i = 0;
  for (; i + LANES <= width; i += LANES) values += load(x + i);
  float total = sum(values);
  for (; i < width; i++) total += x[i];
  const float mean = total / static_cast<float>(width);
  for (i = 0; i + LANES <= width; i += LANES) squares += (load(x + i) - mean) * (load(x + i) - mean);
  float variance = sum(squares);
  for (; i < width; i++) variance += (x[i] - mean) * (x[i] - mean);
  const float scale = 1.0f / std::sqrt(variance / static_cast<float>(width) + eps);
  for (i = 0; i + LANES <= width; i += LANES)
    out(i, (load(x + i) - mean) * scale * load(weight + i) + (bias ? load(bias + i) : floats{}));
  for (; i < width; i++) out(i, (x[i] - mean) * scale * weight[i] + (bias ? bias[i] : 0.0f));
}

// The norm with the interface's number, or x unchanged.
template <class Out>
inline void normalise(int norm, const float *x, const float *weight, const float *bias, int width, float eps,
                      const Out &out) {
  if (norm == PLIMSOLL_NORMED_RMS) return normalise(x, weight, width, eps, out);
  if (norm == PLIMSOLL_NORMED_LAYER) return normalise_layer(x, weight, bias, width, eps, out);
  int i = 0;
  for (; i + LANES <= width; i += LANES) out(i, load(x + i));
  for (; i < width; i++) out(i, x[i]);
}

// Writes floats, or vectors of them, to elements or operands at `row`.
template <class E>
struct Row {
  E *row;
  void operator()(int i, floats v) const { store(row + i, v); }
  void operator()(int i, float v) const { put(row + i, v); }
};

// Adds floats, or vectors of them, to `row`.
struct Sum {
  float *row;
  void operator()(int i, floats v) const { store(row + i, load(row + i) + v); }
  void operator()(int i, float v) const { row[i] += v; }
};

}  // namespace PLIMSOLL_ISA
