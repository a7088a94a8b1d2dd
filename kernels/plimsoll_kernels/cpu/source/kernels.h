// The functions of the interface for elements T in the instruction set that is being compiled.
#pragma once

#include <cstdlib>

#include "candidates.h"
#include "decoder.h"
#include "log_probabilities.h"
#include "peak.h"

namespace PLIMSOLL_ISA {

template <class T>
struct Kernels {
  using element = typename T::element;
  using weight_element = typename T::weight;
  using cached = typename T::cached;
  using operand = typename T::operand;

  static int64_t packed_elements(int32_t columns, int32_t inputs, int32_t gated) {
    const int count = gated ? gated_panels(columns) : panels(columns);
    return static_cast<int64_t>(count) * panel_elements<T>(inputs);
  }

  static void pack(const void *weight, int32_t columns, int32_t inputs, void *packed, int32_t threads) {
    const size_t size = panel_elements<T>(inputs);
    Crew(threads).each(panels(columns), 1, [&](int begin, int end, int) {
      for (int p = begin; p < end; p++)
        for (int half = 0; half < 2; half++)
          pack_half<T>(static_cast<const weight_element *>(weight), p * PANEL + half * LANES, columns, inputs,
                       static_cast<weight_element *>(packed) + p * size, half);
    });
  }

  static void pack_gated(const void *gate, const void *up, int32_t columns, int32_t inputs, void *packed,
                         int32_t threads) {
    const size_t size = panel_elements<T>(inputs);
    Crew(threads).each(gated_panels(columns), 1, [&](int begin, int end, int) {
      for (int p = begin; p < end; p++)
        for (int half = 0; half < 2; half++)
          pack_half<T>(static_cast<const weight_element *>(half ? up : gate), p * LANES, columns, inputs,
                       static_cast<weight_element *>(packed) + p * size, half);
    });
  }

  // x is [rows, inputs], dense; out float32 [rows, columns].
  static void linear(const void *x, int32_t rows, const PlimsollLinear *linear, float *out, int32_t threads) {
    const size_t stride = padded<T>(linear->inputs);
    auto *copy = static_cast<operand *>(std::aligned_alloc(64, rows * stride * sizeof(operand)));
    const Crew crew(threads);
    for (int r = 0; r < rows; r++) {
      operand *to = copy + r * stride;
      convert(static_cast<const element *>(x) + static_cast<size_t>(r) * linear->inputs, to, linear->inputs);
      for (size_t i = linear->inputs; i < stride; i++) to[i] = operand{};
    }
    multiply_panels<T>(crew, copy, stride, rows, static_cast<const weight_element *>(linear->weight), linear->inputs,
                       panels(linear->columns),
                       ToFloats<false>{out, static_cast<size_t>(linear->columns), linear->bias, linear->columns});
    std::free(copy);
  }

  static int64_t workspace(const PlimsollModel *model, int32_t rows, int32_t threads) {
    return Workspace<T>(*model, rows, threads, nullptr).bytes;
  }

  static int32_t forward(const PlimsollModel *model, const PlimsollCache *cache, const PlimsollStep *step,
                         int32_t threads) {
    const Workspace<T> space(*model, step->rows, threads, static_cast<char *>(step->workspace));
    const Crew crew(threads);
    return Decoder<T>(*model, *cache, *step, space, crew).run();
  }

  // The shape that needs the most memory for heads of this size.
  static PlimsollShape latent_of(int head_dim) {
    PlimsollShape shape{};
    shape.head_dim = shape.latent = head_dim;
    return shape;
  }

  static int64_t attention_workspace(int32_t head_dim, int32_t threads) {
    return static_cast<int64_t>(tile_bytes_of<T>(latent_of(head_dim))) * threads;
  }

  // Attention alone, for decoders that are not PlimsollModels: query [rows, heads, head_dim], key and value [rows,
  // kv_heads, head_dim], both with the cache's elements, and out like query. The tokens, rotary tables and hidden
  // states of `step` are not read.
  static void attention(const void *query, const void *key, const void *value, void *out, const PlimsollShape *shape,
                        int32_t layer, const PlimsollCache *cache, const PlimsollStep *step, int32_t threads) {
    const int dim = shape->head_dim;
    const size_t width = static_cast<size_t>(shape->heads) * dim;
    const Crew crew(threads);
    const Attention<T> attention(*cache, *step, crew, static_cast<char *>(step->workspace), tile_bytes_of<T>(latent_of(dim)));
    crew.each(step->rows, 1, [&](int begin, int end, int) {
      for (int r = begin; r < end; r++)
        for (int h = 0; h < shape->kv_heads; h++) {
          const size_t at = (static_cast<size_t>(r) * shape->kv_heads + h) * dim;
          if (!shape->latent) attention.write_key(layer, h, dim, r, static_cast<const cached *>(key) + at);
          attention.write_value(layer, h, dim, r, static_cast<const cached *>(value) + at);
        }
    });
    for (int s = 0; s < step->sequences; s++) attention.clear_fresh(layer, *shape, s);
    attention.attend(layer, *shape, static_cast<const element *>(query), width, static_cast<element *>(out), width);
  }

  static constexpr PlimsollKernels table(const char *name) {
    return {name, LANES, packed_elements, pack, pack_gated, linear, workspace, forward, attention_workspace, attention,
            sampling_workspace, sample, report, candidates, peak<T>};
  }
};

}  // namespace PLIMSOLL_ISA
