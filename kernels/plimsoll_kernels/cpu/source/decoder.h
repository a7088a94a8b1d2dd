// A whole step of a decoder: token ids to hidden states, a phase after the other, each by all threads.
//
// The residual stream, queries, keys and values before rotation, scores and sums are float32; the rows that a product
// reads become operands once, keys and values elements.
#pragma once

#include "clock.h"
#include "paged.h"

namespace PLIMSOLL_ISA {

constexpr int MAX_HEAD = 1024;

// The memory of one call, laid out the same for the same rows.
template <class T>
struct Workspace {
  using operand = typename T::operand;
  size_t hidden_stride, heads_stride, inner_stride;
  float *residual;    // [rows, hidden]
  float *heads;       // [rows, widest qkv]
  float *added;       // [rows, hidden], for post-norms
  operand *normed;    // [rows, hidden]
  operand *queries;   // [rows, widest qkv]
  operand *attended;  // [rows, widest qkv]
  operand *gated;     // [rows, inner]
  char *tiles;        // for each thread
  size_t tile_bytes, bytes;
  int attended_begin, attended_end;  // what a product with any layer's `attended` reads beyond what that layer wrote

  Workspace(const PlimsollModel &model, int rows, int threads, char *memory) {
    int widest_head = 0;
    attended_begin = static_cast<int>(padded<T>(model.max_heads_width)), attended_end = 0;
    for (int i = 0; i < model.num_layers; i++) {
      const PlimsollLayer &layer = model.layers[i];
      const int inputs = layer.output.inputs, whole = words<T>(inputs) * T::PAIR;
      widest_head = layer.head_dim > widest_head ? layer.head_dim : widest_head;
      attended_begin = inputs < attended_begin ? inputs : attended_begin;
      attended_end = whole > attended_end ? whole : attended_end;
    }
    hidden_stride = padded<T>(model.hidden);
    heads_stride = padded<T>(model.max_heads_width);
    inner_stride = padded<T>(model.inner);
    char *at = memory;
    auto take = [&](size_t size) {
      char *here = at;
      at += (size + 63) / 64 * 64;
      return here;
    };
    const size_t n = rows;
    residual = reinterpret_cast<float *>(take(n * model.hidden * sizeof(float)));
    added = reinterpret_cast<float *>(take(n * model.hidden * sizeof(float)));
    heads = reinterpret_cast<float *>(take(n * model.max_heads_width * sizeof(float)));
    normed = reinterpret_cast<operand *>(take(n * hidden_stride * sizeof(operand)));
    queries = reinterpret_cast<operand *>(take(n * heads_stride * sizeof(operand)));
    attended = reinterpret_cast<operand *>(take(n * heads_stride * sizeof(operand)));
    gated = reinterpret_cast<operand *>(take(n * inner_stride * sizeof(operand)));
    tile_bytes = TileMemory<T>::bytes(widest_head);
    tiles = take(tile_bytes * threads);
    bytes = at - memory;
  }
};

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

// Writes floats or vectors of them to elements or operands at `row`.
template <class E>
struct Row {
  E *row;
  void operator()(int i, floats v) const { store(row + i, v); }
  void operator()(int i, float v) const { put(row + i, v); }
};

// Adds floats or vectors of them to `row`.
struct Sum {
  float *row;
  void operator()(int i, floats v) const { store(row + i, load(row + i) + v); }
  void operator()(int i, float v) const { row[i] += v; }
};

// A tile's sums with their bias, handed on in whole vectors or, at the end of a weight, one by one.
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

// Asks for `width` values of each of so many rows, `stride` values apart, to write them.
template <class E>
inline void prefetch_rows(const E *first, size_t stride, int rows, int width) {
  for (int r = 0; r < rows; r++)
    for (size_t at = 0; at < width * sizeof(E); at += 64)
      prefetch_to_write(reinterpret_cast<const char *>(first + r * stride) + at);
}

// out = x W^T + b in float32, or out += it.
template <bool ADD>
struct ToFloats {
  float *out;
  size_t stride;
  const float *bias;
  int columns;

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
        float *base;
        size_t stride;
        void operator()(int r, int i, floats v) const {
          float *at = base + r * stride + i;
          store(at, ADD ? load(at) + v : v);
        }
        void operator()(int r, int i, float v) const {
          float *at = base + r * stride + i;
          *at = ADD ? *at + v : v;
        }
      } out{t.out + row * t.stride, t.stride};
      spread<R>(sums, t.bias, panel * PANEL, t.columns, out);
    }
  };

  Panel operator()(int panel) const { return {this, panel}; }
};

// out = activation(gate) x up, as operands: a panel's first vector is of the gate, its second of the other.
template <class T>
struct ToGated {
  typename T::operand *out;
  size_t stride;
  const float *bias;
  int columns;
  bool gelu;

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
        const floats gate = sums[r][0] + load(gate_bias);
        const floats value = (t.gelu ? gelu_tanh(gate) : silu(gate)) * (sums[r][1] + load(up_bias));
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

template <class T>
class Decoder {
 public:
  using element = typename T::element;
  using operand = typename T::operand;

  Decoder(const PlimsollModel &model, const PlimsollCache &cache, const PlimsollStep &step, const Workspace<T> &space,
          const Crew &crew)
      : model_(model),
        step_(step),
        space_(space),
        crew_(crew),
        attention_(cache, step, crew, space.tiles, space.tile_bytes),
        since_(seconds_now()) {}

  void run() {
    embed();
    for (int i = 0; i < model_.num_layers; i++) layer(i);
    crew_.each(step_.rows, FEW_ROWS, [&](int begin, int end, int) {
      for (int r = begin; r < end; r++) {
        const size_t at = static_cast<size_t>(r) * model_.hidden;
        normalise(space_.residual + at, model_.final_norm, model_.hidden, model_.norm_eps,
                  Row<element>{static_cast<element *>(step_.hidden) + at});
      }
    });
    lap(PLIMSOLL_NORM);
  }

 private:
  // What is not worth handing to another thread.
  static constexpr int FEW_ROWS = 4, FEW_HEADS = 16;

  const PlimsollModel &model_;
  const PlimsollStep &step_;
  const Workspace<T> &space_;
  const Crew &crew_;
  const Attention<T> attention_;
  double since_;

  // The time since the last lap goes to `op`.
  void lap(PlimsollOp op) {
    if (!step_.seconds) return;
    const double t = seconds_now();
    step_.seconds[op] += t - since_;
    since_ = t;
  }

  void embed() {
    crew_.each(step_.rows, FEW_ROWS, [&](int begin, int end, int) {
      for (int r = begin; r < end; r++) {
        float *to = space_.residual + static_cast<size_t>(r) * model_.hidden;
        if (model_.embedding) {
          copy_embedding(step_.tokens[r], to);
        } else {
          if (r + 1 < end) prefetch_packed(step_.tokens[r + 1]);
          unpack_embedding(step_.tokens[r], to);
        }
        // What lies between a row's end and that of a step is read by products: it must be finite.
        clear(space_.normed + r * space_.hidden_stride, model_.hidden, space_.hidden_stride);
        clear(space_.gated + r * space_.inner_stride, model_.inner, space_.inner_stride);
        clear(space_.attended + r * space_.heads_stride, space_.attended_begin, space_.attended_end);
      }
    });
    lap(PLIMSOLL_EMBED);
  }

  void copy_embedding(int64_t token, float *to) const {
    const element *from = static_cast<const element *>(model_.embedding) + token * model_.hidden;
    for (int i = 0; i < model_.hidden; i++) to[i] = widen(from[i]) * model_.embedding_scale;
  }

  const element *packed_embedding(int64_t token) const {
    return packed_row<T>(static_cast<const element *>(model_.packed_embedding), token, model_.hidden);
  }

  // Each word of a packed row lies on a line of its own.
  void prefetch_packed(int64_t token) const {
    const element *from = packed_embedding(token);
    for (int i = 0; i < words<T>(model_.hidden); i++) prefetch_near(from + static_cast<size_t>(i) * PANEL * T::PAIR);
  }

  void unpack_embedding(int64_t token, float *to) const {
    const element *from = packed_embedding(token);
    for (int i = 0; i < model_.hidden; i++) {
      const size_t at = static_cast<size_t>(i / T::PAIR) * PANEL * T::PAIR + i % T::PAIR;
      to[i] = widen(from[at]) * model_.embedding_scale;
    }
  }

  static void clear(operand *row, size_t begin, size_t end) {
    for (size_t i = begin; i < end; i++) row[i] = operand{};
  }

  void layer(int index) {
    const PlimsollLayer &layer = model_.layers[index];
    norm(layer.attention_norm);
    const int width = (layer.heads + 2 * layer.kv_heads) * layer.head_dim;
    to_floats<false>(space_.normed, space_.hidden_stride, layer.query_key_value, space_.heads, width);
    lap(PLIMSOLL_QKV);
    rotate(index, layer);
    lap(PLIMSOLL_ROPE);
    attention_.attend(index, layer, space_.queries, space_.heads_stride, space_.attended, space_.heads_stride);
    lap(PLIMSOLL_ATTENTION);
    add(space_.attended, space_.heads_stride, layer.output, layer.attention_post_norm, PLIMSOLL_OUTPUT);
    norm(layer.mlp_norm);
    gate(layer);
    lap(PLIMSOLL_GATE_UP);
    add(space_.gated, space_.inner_stride, layer.down, layer.mlp_post_norm, PLIMSOLL_DOWN);
  }

  void norm(const float *weight) {
    crew_.each(step_.rows, FEW_ROWS, [&](int begin, int end, int) {
      for (int r = begin; r < end; r++)
        normalise(space_.residual + static_cast<size_t>(r) * model_.hidden, weight, model_.hidden, model_.norm_eps,
                  Row<operand>{space_.normed + r * space_.hidden_stride});
    });
    lap(PLIMSOLL_NORM);
  }

  template <bool ADD>
  void to_floats(const operand *x, size_t stride, const PlimsollLinear &linear, float *out, size_t out_stride) {
    multiply_panels<T>(crew_, x, stride, step_.rows, static_cast<const element *>(linear.weight), linear.inputs,
                       panels(linear.columns), ToFloats<ADD>{out, out_stride, linear.bias, linear.columns});
  }

  // residual += x W^T, or += norm(x W^T).
  void add(const operand *x, size_t stride, const PlimsollLinear &linear, const float *post_norm, PlimsollOp op) {
    if (!post_norm) {
      to_floats<true>(x, stride, linear, space_.residual, model_.hidden);
      lap(op);
      return;
    }
    to_floats<false>(x, stride, linear, space_.added, model_.hidden);
    lap(op);
    crew_.each(step_.rows, FEW_ROWS, [&](int begin, int end, int) {
      for (int r = begin; r < end; r++) {
        const size_t at = static_cast<size_t>(r) * model_.hidden;
        normalise(space_.added + at, post_norm, model_.hidden, model_.norm_eps, Sum{space_.residual + at});
      }
    });
    lap(PLIMSOLL_NORM);
  }

  void gate(const PlimsollLayer &layer) {
    const int columns = layer.gate_up.columns;
    multiply_panels<T>(crew_, space_.normed, space_.hidden_stride, step_.rows,
                       static_cast<const element *>(layer.gate_up.weight), layer.gate_up.inputs,
                       gated_panels(columns),
                       ToGated<T>{space_.gated, space_.inner_stride, layer.gate_up.bias, columns,
                                  model_.activation == 1});
  }

  // Norms over heads, the rotation, queries to operands, keys and values into the cache: for each row and head; then,
  // for each sequence, what its last sub-block still lacks.
  void rotate(int index, const PlimsollLayer &layer) {
    const int heads = layer.heads + 2 * layer.kv_heads;
    crew_.each(step_.rows * heads, FEW_HEADS, [&](int begin, int end, int) {
      for (int item = begin; item < end; item++) head(index, layer, item / heads, item % heads);
    });
    crew_.each(step_.sequences, FEW_HEADS, [&](int begin, int end, int) {
      for (int s = begin; s < end; s++) attention_.clear_fresh(index, layer, s);
    });
  }

  void head(int index, const PlimsollLayer &layer, int row, int head) {
    const int dim = layer.head_dim, half = dim / 2, keys = layer.heads, values = keys + layer.kv_heads;
    float *x = space_.heads + (static_cast<size_t>(row) * (values + layer.kv_heads) + head) * dim;
    if (head >= values) {
      element rounded[MAX_HEAD];
      for (int d = 0; d < dim; d += LANES) store(rounded + d, load(x + d));
      attention_.write_value(index, head - values, dim, row, rounded);
      return;
    }
    const float *weight = head < keys ? layer.query_norm : layer.key_norm;
    if (weight) normalise(x, weight, dim, model_.norm_eps, Row<float>{x});
    const float *turns = step_.turns[layer.rope] + static_cast<size_t>(step_.positions[row]) * dim;
    // While a row's queries turn, the places for its keys and values come in.
    if (head < layer.kv_heads) attention_.prefetch(index, head, dim, row);
    if (head < keys) {
      turn(x, turns, half, space_.queries + row * space_.heads_stride + static_cast<size_t>(head) * dim);
      return;
    }
    element rounded[MAX_HEAD];
    turn(x, turns, half, rounded);
    attention_.write_key(index, head - keys, dim, row, rounded);
  }

  // Dimension d turns with dimension d + half; `turns` are half cosines, then half sines.
  template <class E>
  static void turn(const float *x, const float *turns, int half, E *out) {
    int d = 0;
    for (; d + LANES <= half; d += LANES) {
      const floats first = load(x + d), second = load(x + half + d);
      const floats cosine = load(turns + d), sine = load(turns + half + d);
      store(out + d, first * cosine - second * sine);
      store(out + half + d, second * cosine + first * sine);
    }
    for (; d < half; d++) {
      put(out + d, x[d] * turns[d] - x[half + d] * turns[half + d]);
      put(out + half + d, x[half + d] * turns[d] + x[d] * turns[half + d]);
    }
  }
};

}  // namespace PLIMSOLL_ISA
