// A whole step of a decoder: token ids to hidden states, a model's ops one after the other, each by all threads.
//
// The residual stream, queries, keys and values before rotation, scores and sums are float32. The inputs of products
// are converted to operands once, keys and values to elements.
#pragma once

#include "clock.h"
#include "delta_rule.h"
#include "dual_scan.h"
#include "elementwise.h"
#include "exchange.h"
#include "gated_norm.h"
#include "gated_recurrence.h"
#include "heads.h"
#include "latent.h"
#include "results.h"
#include "route.h"
#include "selective_scan.h"
#include "short_convolution.h"
#include "workspace.h"

namespace PLIMSOLL_ISA {

template <class T>
class Decoder {
 public:
  using element = typename T::element;
  using weight = typename T::weight;
  using operand = typename T::operand;

  Decoder(const PlimsollModel &model, const PlimsollCache &cache, const PlimsollStep &step, const Workspace<T> &space,
          const Crew &crew)
      : model_(model),
        step_(step),
        space_(space),
        crew_(crew),
        attention_(cache, step, crew, space.tiles, space.tile_bytes),
        since_(seconds_now()) {}

  // Returns 0, or the number of the op that failed, from 1.
  int run() {
    for (int i = 0; i < model_.num_ops; i++) {
      plimsoll_run(model_.ops[i], [&](const auto &op) { run(op); });
      lap(model_.ops[i].timed);
      if (failed_) return i + 1;
    }
    return 0;
  }

 private:
  // Numbers of items that are too few to give to another thread.
  static constexpr int FEW_ROWS = 4, FEW_HEADS = 16;

  const PlimsollModel &model_;
  const PlimsollStep &step_;
  const Workspace<T> &space_;
  const Crew &crew_;
  const Attention<T> attention_;
  double since_;
  bool failed_ = false;

  // Adds the time since the last lap to `timed`.
  void lap(int timed) {
    if (!step_.seconds) return;
    const double t = seconds_now();
    step_.seconds[timed] += t - since_;
    since_ = t;
  }

  // Calls work(row) for all rows.
  template <class Work>
  void each_row(const Work &work) const {
    crew_.each(step_.rows, FEW_ROWS, [&](int begin, int end, int) {
      for (int r = begin; r < end; r++) work(r);
    });
  }

  void run(const PlimsollEmbed &op) {
    crew_.each(step_.rows, FEW_ROWS, [&](int begin, int end, int) {
      for (int r = begin; r < end; r++) {
        float *to = space_.floats_at(op.target, r);
        const int64_t token = step_.tokens[r] - op.first;
        if (!has_row(op, token)) {
          std::memset(to, 0, op.width * sizeof(float));
        } else if (op.table) {
          copy_embedding(op, token, to);
        } else {
          const int64_t next = r + 1 < end ? step_.tokens[r + 1] - op.first : -1;
          if (has_row(op, next)) prefetch_packed(op, next);
          unpack_embedding(op, token, to);
        }
        space_.clear_ends(r);
      }
    });
  }

  // A rank's table has the rows of its part of the vocabulary.
  static bool has_row(const PlimsollEmbed &op, int64_t token) {
    return op.texts || (token >= 0 && token < op.vocab);
  }

  static void copy_embedding(const PlimsollEmbed &op, int64_t token, float *to) {
    const int64_t text = op.texts ? token / op.vocab : 0;
    const element *from = static_cast<const element *>(op.table) + (token - text * op.vocab) * op.width;
    for (int i = 0; i < op.width; i++) to[i] = widen(from[i]) * op.scale;
    if (!op.texts) return;
    const element *added = static_cast<const element *>(op.texts) + text * op.width;
    for (int i = 0; i < op.width; i++) to[i] += widen(added[i]);
  }

  static const weight *packed_embedding(const PlimsollEmbed &op, int64_t token) {
    return packed_row<T>(static_cast<const weight *>(op.packed), token, op.width);
  }

  // Each word of a packed row is on a cache line of its own.
  static void prefetch_packed(const PlimsollEmbed &op, int64_t token) {
    const weight *from = packed_embedding(op, token);
    for (int i = 0; i < words<T>(op.width); i++) prefetch_near(from + static_cast<size_t>(i) * PANEL * T::PAIR);
  }

  static void unpack_embedding(const PlimsollEmbed &op, int64_t token, float *to) {
    const weight *from = packed_embedding(op, token);
    for (int i = 0; i < op.width; i++) {
      const size_t at = static_cast<size_t>(i / T::PAIR) * PANEL * T::PAIR + i % T::PAIR;
      to[i] = widen(from[at]) * op.scale;
    }
  }

  void run(const PlimsollReceive &op) {
    each_row([&](int r) {
      const float *from = step_.incoming + static_cast<size_t>(r) * op.stride + op.first;
      std::memcpy(space_.floats_at(op.target, r), from, op.width * sizeof(float));
      space_.clear_ends(r);
    });
  }

  void run(const PlimsollSend &op) {
    each_row([&](int r) {
      float *to = step_.outgoing + static_cast<size_t>(r) * op.stride + op.first;
      std::memcpy(to, space_.floats_at(op.source, r), op.width * sizeof(float));
    });
  }

  void run(const PlimsollPositions &op) {
    each_row([&](int r) {
      const int64_t at = (step_.positions[r] + op.first) * op.width;
      const element *from = static_cast<const element *>(op.table) + at;
      float *to = space_.floats_at(op.target, r);
      for (int i = 0; i < op.width; i++) to[i] += widen(from[i]);
    });
  }

  void run(const PlimsollNorm &op) {
    if (op.target == PLIMSOLL_RESULT)
      norm_to(op, [&](int r) {
        return Row<element>{static_cast<element *>(step_.hidden) + static_cast<size_t>(r) * op.width};
      });
    else if (op.adds)
      norm_to(op, [&](int r) { return Sum{space_.floats_at(op.target, r) + op.first}; });
    else if (space_.has_operands(op.target))
      norm_to(op, [&](int r) { return Row<operand>{space_.operands_at(op.target, r) + op.first}; });
    else
      norm_to(op, [&](int r) { return Row<float>{space_.floats_at(op.target, r) + op.first}; });
  }

  template <class To>
  void norm_to(const PlimsollNorm &op, const To &to) {
    each_row([&](int r) {
      normalise(op.norm, space_.floats_at(op.source, r) + op.first, op.weight, op.bias, op.width, op.eps, to(r));
    });
  }

  void run(const PlimsollProduct &op) {
    const PlimsollLinear &linear = op.linear;
    const size_t stride = space_.stride(op.target);
    switch (op.into) {
      case PLIMSOLL_INTO_FLOATS:
        multiply(op, panels(linear.columns),
                 ToFloats<false>{space_.floats_at(op.target), stride, linear.bias, linear.columns, 1, op.limit});
        break;
      case PLIMSOLL_INTO_SUM:
        multiply(op, panels(linear.columns),
                 ToFloats<true>{space_.floats_at(op.target), stride, linear.bias, linear.columns, op.scale});
        break;
      case PLIMSOLL_INTO_GATED:
        multiply(op, gated_panels(linear.columns),
                 ToGated<T>{space_.operands_at(op.target), stride, linear.bias, linear.columns, op.activation});
        break;
      case PLIMSOLL_INTO_OPERANDS:
        multiply(op, panels(linear.columns),
                 ToOperands<T>{space_.operands_at(op.target), stride, linear.bias, linear.columns, op.activation});
        break;
    }
  }

  template <class To>
  void multiply(const PlimsollProduct &op, int count, const To &to) {
    multiply_panels<T>(crew_, space_.operands_at(op.source), space_.stride(op.source), step_.rows,
                       static_cast<const weight *>(op.linear.weight), op.linear.inputs, count, to);
  }

  // For each row and head; then, for each sequence, clears the rest of its last sub-block.
  void run(const PlimsollHeads &op) {
    const Heads<T> work(op, step_, attention_);
    const int count = work.count();
    crew_.each(step_.rows * count, FEW_HEADS, [&](int begin, int end, int) {
      for (int item = begin; item < end; item++) {
        const int row = item / count;
        work.run(row, item % count, space_.floats_at(op.source, row), space_.operands_at(op.target, row));
      }
    });
    crew_.each(step_.sequences, FEW_HEADS, [&](int begin, int end, int) {
      for (int s = begin; s < end; s++) attention_.clear_fresh(op.layer, op.shape, s);
    });
  }

  Latents<T> latents() const { return {step_, space_, crew_, attention_}; }
  void run(const PlimsollLatent &op) { latents().write(op); }
  void run(const PlimsollAbsorb &op) { latents().absorb(op); }
  void run(const PlimsollExpand &op) { latents().expand(op); }

  void run(const PlimsollAttend &op) {
    attention_.attend(op.layer, op.shape, space_.operands_at(op.source), space_.stride(op.source),
                      space_.operands_at(op.target), space_.stride(op.target));
  }

  void run(const PlimsollAdd &op) {
    each_row([&](int r) {
      const float *x = space_.floats_at(op.source, r), *y = space_.floats_at(op.added, r);
      float *to = space_.floats_at(op.target, r);
      for (int i = 0; i < op.width; i++) to[i] = x[i] + y[i] * op.scale;
    });
  }

  // The rows at a place of floats, also for integers of the same size.
  template <class E>
  Rows<E> rows_at(int place) const {
    return {reinterpret_cast<E *>(space_.floats_at(place)), space_.stride(place)};
  }

  void run(const PlimsollRoute &op) {
    const Router router(op);
    const Rows<float> x = rows_at<float>(op.source), scores = rows_at<float>(op.scores);
    const Rows<float> shares = rows_at<float>(op.shares);
    const Rows<int32_t> numbers = rows_at<int32_t>(op.numbers);
    router.score(crew_, x.first, x.stride, step_.rows, scores.first, scores.stride);
    each_row([&](int r) { router.choose(scores.at(r), shares.at(r), numbers.at(r)); });
  }

  void run(const PlimsollExperts &op) {
    Experts<T>(op, step_.rows, crew_, space_.experts)
        .run(rows_at<const float>(op.source), rows_at<const float>(op.shares), rows_at<const int32_t>(op.numbers),
             rows_at<float>(op.target));
  }

  void run(const PlimsollGate &op) {
    each_row([&](int r) {
      float passes;
      dots<1, 1>(space_.floats_at(op.source, r), 0, op.weight, op.inputs, &passes, 0);
      passes = sigmoid(passes);
      float *y = space_.floats_at(op.target, r);
      for (int i = 0; i < op.width; i++) y[i] *= passes;
    });
  }

  void run(const PlimsollReduce &op) {
    const plimsoll::Part part{space_.floats_at(op.source), space_.stride(op.source), space_.floats_at(op.target),
                              space_.stride(op.target), static_cast<size_t>(step_.rows),
                              static_cast<size_t>(op.width), op.scale, op.adds != 0};
    failed_ = !static_cast<plimsoll::Exchange *>(op.exchange)->sum(part);
  }

  void run(const PlimsollScale &op) {
    each_row([&](int r) { scale(op, space_, r); });
  }

  void run(const PlimsollMultiply &op) {
    each_row([&](int r) { PLIMSOLL_ISA::multiply(op, space_, r); });
  }

  void run(const PlimsollConvolve &op) { Convolution<T>(op, step_, space_).run(crew_); }
  void run(const PlimsollGatedNorm &op) { GatedNorm<T>(op, space_).run(crew_, step_.rows); }
  void run(const PlimsollDualScan &op) { DualScan<T>(op, step_, space_).run(crew_); }
  void run(const PlimsollDeltaRule &op) { DeltaRule<T>(op, step_, space_).run(crew_); }
  void run(const PlimsollSelectiveScan &op) { SelectiveScan<T>(op, step_, space_).run(crew_); }
  void run(const PlimsollGatedRecurrence &op) { GatedRecurrence<T>(op, step_, space_).run(crew_); }
};

}  // namespace PLIMSOLL_ISA
