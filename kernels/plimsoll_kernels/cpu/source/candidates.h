// The part of a rank in the choice of tokens, if each rank of a group has the logits of a part of the vocabulary: its
// largest logits, the weights of its part, and the token that a share of its weight ends at.
//
// Three calls read the same rows, because weights are relative to the largest logit of all parts. A part begins at a
// multiple of GROUP tokens, so its groups, and the sums of their weights, are those of the whole row.
#pragma once

#include "sampling.h"

namespace PLIMSOLL_ISA {

class Lister {
 public:
  Lister(const PlimsollCandidates &batch, const RowMemory &memory)
      : batch_(batch), memory_(memory), row_(memory_, batch.width) {}

  void operator()(int r) {
    memory_.maxima = batch_.maxima + static_cast<size_t>(r) * row_.groups();
    const float *logits = batch_.logits + r * batch_.stride;
    if (batch_.stage == PLIMSOLL_STAGE_LIST) return list(r, logits);
    if (!(batch_.temperature[r] >= FLT_MIN)) return;
    const float scale = 1.0f / batch_.temperature[r];
    const float least = batch_.min_p[r] > NOTHING ? batch_.min_p[r] : NOTHING;
    row_.resume(logits, batch_.largest[r]);
    if (batch_.stage == PLIMSOLL_STAGE_WEIGH) {
      batch_.mass[r] = row_.weigh_row(scale, least);
      batch_.above[r] = batch_.counts[r] ? weigh_above(r, scale) : 0.0;
    } else if (batch_.target[r] >= 0.0) {
      row_.weigh_row(scale, least);
      batch_.tokens[r] = find_in_row(row_, memory_, scale, least, batch_.target[r]);
    }
  }

 private:
  void list(int r, const float *logits) {
    row_.read(logits);
    batch_.best[r] = row_.best();
    batch_.tokens[r] = row_.find_best();
    const int wanted = batch_.counts[r];
    if (wanted == 0) return;
    float *values = batch_.values + static_cast<size_t>(r) * batch_.most;
    int32_t *listed = batch_.listed + static_cast<size_t>(r) * batch_.most;
    if (row_.best() != row_.best()) {
      for (int i = 0; i < wanted; i++) values[i] = -INFINITE, listed[i] = 0;
      return;
    }
    int count = row_.list_first(wanted);
    count = row_.keep(count, shortest(memory_.values, count, one, wanted, memory_));
    std::memcpy(values, memory_.values, count * sizeof(float));
    std::memcpy(listed, memory_.tokens, count * sizeof(int32_t));
  }

  // The weight of the candidates above a bound.
  double weigh_above(int r, float scale) const {
    const float *values = batch_.values + static_cast<size_t>(r) * batch_.most, bound = batch_.bound[r];
    for (int i = 0; i < batch_.counts[r]; i++) memory_.values[i] = values[i] > bound ? values[i] : -INFINITE;
    return row_.weigh_list(batch_.counts[r], scale, NOTHING);
  }

  const PlimsollCandidates &batch_;
  RowMemory memory_;
  LogitsRow row_;
};

inline void candidates(const PlimsollCandidates *batch, int32_t threads) { each_row<Lister>(*batch, threads); }

}  // namespace PLIMSOLL_ISA
