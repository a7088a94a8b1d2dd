// The gated delta rule (Yang et al., 2024), row by row in float32: a sequence gives the same bits for any division into
// steps.
#pragma once

#include "columns.h"
#include "softplus.h"

namespace PLIMSOLL_ISA {

// A thread computes one value head of one sequence at a time. Columns of its state [key_dim, value_dim] are
// independent: some of them stay in the first level cache while LANES rows of the sequence are processed.
template <class T>
class DeltaRule {
 public:
  DeltaRule(const PlimsollDeltaRule &op, const PlimsollStep &step, const Workspace<T> &space)
      : op_(op), keys_(op.key_heads * op.key_dim), sequences_{step}, space_(space) {}

  void run(const Crew &crew) const {
    with_target(space_, op_.target, [&](const auto &to) {
      crew.each(sequences_.step.sequences * op_.value_heads, 1, [&](int begin, int end, int) {
        for (int item = begin; item < end; item++) tell(item / op_.value_heads, item % op_.value_heads, to);
      });
    });
  }

 private:
  // Vectors of columns that are computed together.
  static constexpr int VECTORS = 4;
  static constexpr float EPS = 1e-6f; // added under the root of the length of queries and keys

  const PlimsollDeltaRule &op_;
  const int keys_;
  const Sequences sequences_;
  const Workspace<T> &space_;

  // For some rows of a sequence: the factors of the state, the write strengths, queries and keys.
  struct Rows {
    int first, count;
    float kept[LANES], learned[LANES], queries[LANES][PLIMSOLL_KEY_DIM], keys[LANES][PLIMSOLL_KEY_DIM];
  };

  template <class To>
  void tell(int s, int head, const To &to) const {
    const size_t size = static_cast<size_t>(op_.key_dim) * op_.value_dim;
    float *state = sequences_.template state<float>(op_.state, s, size * op_.value_heads) + head * size;
    if (sequences_.is_new(s)) std::memset(state, 0, sizeof(float) * size);
    Rows rows;
    for (rows.first = sequences_.begin(s); rows.first < sequences_.end(s); rows.first += LANES) {
      const int left = sequences_.end(s) - rows.first;
      rows.count = left < LANES ? left : LANES;
      read(head, rows);
      int column = 0;
      for (; column + VECTORS * LANES <= op_.value_dim; column += VECTORS * LANES)
        advance<VECTORS>(rows, head, column, state, to);
      for (; column < op_.value_dim; column += LANES) advance<1>(rows, head, column, state, to);
    }
  }

  void read(int head, Rows &rows) const {
    const int key_head = op_.in_turns ? head % op_.key_heads : head / (op_.value_heads / op_.key_heads);
    float times[LANES]{}, writes[LANES]{};
    for (int i = 0; i < rows.count; i++) {
      const int row = rows.first + i;
      const float *query = part_at(space_, op_.mixed, row) + key_head * op_.key_dim;
      times[i] = part_at(space_, op_.times, row)[head];
      writes[i] = part_at(space_, op_.writes, row)[head];
      to_length(query, 1.0f / std::sqrt(static_cast<float>(op_.key_dim)), rows.queries[i]);
      to_length(query + keys_, 1.0f, rows.keys[i]);
    }
    store(rows.kept, exponential(softplus(load(times) + op_.step_bias[head]) * op_.decay[head]));
    store(rows.learned, 1.0f / (exponential(-load(writes)) + 1.0f));
  }

  // Scales a vector to this length.
  void to_length(const float *x, float length, float *to) const {
    floats squares{};
    for (int i = 0; i < op_.key_dim; i += LANES) {
      const floats v = load_some(x + i, op_.key_dim - i);
      squares += v * v;
    }
    const float scale = length / std::sqrt(sum(squares) + EPS);
    for (int i = 0; i < op_.key_dim; i += LANES) {
      const int left = op_.key_dim - i;
      store_some(to + i, load_some(x + i, left) * scale, left);
    }
  }

  // h = kept h, h += k (learned (v - h^T k))^T, y = h^T q: V vectors of columns, for all of these rows.
  template <int V, class To>
  void advance(const Rows &rows, int head, int column, float *state, const To &to) const {
    const int at = head * op_.value_dim + column, left = op_.value_dim - column;
    float *own = state + column;
    const size_t apart = op_.value_dim;
    for (int i = 0; i < rows.count; i++) {
      const float *query = rows.queries[i], *key = rows.keys[i];
      const float *value = part_at(space_, op_.mixed, rows.first + i) + 2 * keys_ + at;
      floats answers[V]{}, results[V]{};
      for (int k = 0; k < op_.key_dim; k++)
        for (int v = 0; v < V; v++) answers[v] += at_most<V>(own + k * apart + v * LANES, left) * key[k];
      for (int v = 0; v < V; v++)
        answers[v] = (at_most<V>(value + v * LANES, left) - answers[v] * rows.kept[i]) * rows.learned[i];
      for (int k = 0; k < op_.key_dim; k++)
        for (int v = 0; v < V; v++) {
          float *h = own + k * apart + v * LANES;
          const floats now = at_most<V>(h, left) * rows.kept[i] + answers[v] * key[k];
          V > 1 ? store(h, now) : store_some(h, now, left);
          results[v] += now * query[k];
        }
      auto *y = to(rows.first + i) + at;
      for (int v = 0; v < V; v++) store_some(y + v * LANES, results[v], V > 1 ? LANES : left);
    }
  }

  // With several vectors, all are whole.
  template <int V>
  static floats at_most(const float *p, int left) {
    return V > 1 ? load(p) : load_some(p, left);
  }
};

}  // namespace PLIMSOLL_ISA
