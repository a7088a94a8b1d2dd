// Samples a token for each row of logits: the largest, or one drawn by temperature, top-k, top-p and min-p.
//
// Each filter keeps the first tokens in order (larger logits first, of equal ones the first in the vocabulary). So
// nothing is sorted: only the end of the kept tokens is searched (logits_row.h). Exponentials of a whole row are
// computed only if its whole mass is needed: with top-p alone, or without filters.
//
// Sums of weights run in one order, by groups of tokens: a row's token depends on its logits, its parameters and its
// uniform number alone.
//
// The rows may be candidates of longer rows (candidates.h). Then `mass` has the weight of which top_p is a share.
#pragma once

#include <cfloat>

#include "crew.h"
#include "logits_row.h"

namespace PLIMSOLL_ISA {

using plimsoll::Crew;

inline double one(int) { return 1.0; }

struct WeightPlace {
  int group;
  double rest;
};

// The group in which the sums exceed the target, and the rest of the target there; at most the last group with a
// weight.
inline WeightPlace find_group(const double *sums, int groups, double target) {
  double before = 0.0;
  WeightPlace place{0, 0.0};
  for (int g = 0; g < groups; g++) {
    if (sums[g] == 0.0) continue;
    place = {g, target - before};
    before += sums[g];
    if (before > target) break;
  }
  return place;
}

inline int find_inside(const float *weights, double target) {
  double before = 0.0;
  int place = 0;
  for (int i = 0; i < GROUP; i++) {
    if (weights[i] == 0.0f) continue;
    place = i;
    before += weights[i];
    if (before > target) break;
  }
  return place;
}

// The token at which the cumulative weight of a row exceeds the target; the row was weighed with these arguments.
inline int64_t find_in_row(const LogitsRow &row, const RowMemory &memory, float scale, float least, double target) {
  const WeightPlace place = find_group(memory.sums, row.groups(), target);
  float weights[GROUP];
  row.weigh(row.group(place.group), scale, least, weights);
  return place.group * GROUP + find_inside(weights, place.rest);
}

class Chooser {
 public:
  Chooser(const PlimsollSampling &batch, const RowMemory &memory)
      : batch_(batch), memory_(memory), width_(batch.width), row_(memory, batch.width) {}

  void operator()(int r) {
    if (batch_.masked && batch_.masked[r] >= 0) forbid(r);
    row_.read(batch_.logits + r * batch_.stride);
    batch_.best[r] = row_.best();
    batch_.tokens[r] = row_.finite() && batch_.temperature[r] >= FLT_MIN ? draw(r) : row_.find_best();
  }

  // Sets the logits of tokens that a row's mask forbids to -infinity. NaNs stay, because the row is broken.
  void forbid(int r) {
    float *row = batch_.logits + r * batch_.stride;
    const int words = (width_ + 31) / 32;
    const uint32_t *mask = batch_.masks + static_cast<int64_t>(batch_.masked[r]) * words;
    for (int w = 0; w < words; w++) {
      if (mask[w] == UINT32_MAX) continue;
      const int first = w * 32, count = width_ - first < 32 ? width_ - first : 32;
      for (int i = 0; i < count; i++) {
        const float x = row[first + i];
        row[first + i] = (mask[w] >> i & 1) || x != x ? x : -INFINITE;
      }
    }
  }

 private:
  int64_t draw(int r) {
    const float top_p = batch_.top_p[r], least = batch_.min_p[r] > NOTHING ? batch_.min_p[r] : NOTHING;
    const int top_k = batch_.top_k[r];
    const double uniform = batch_.uniform[r];
    scale_ = 1.0f / batch_.temperature[r];
    if (top_k > 0 && top_k < width_) return draw_from_list(keep_top_k(top_k, top_p), least, uniform);
    if (top_p < 1.0f) return draw_from_list(keep_mass(r, top_p), least, uniform);
    return draw_from_row(least, uniform);
  }

  // Lists the tokens that top-k and top-p keep; returns how many.
  int keep_top_k(int top_k, float top_p) {
    int count = row_.list_first(top_k);
    count = row_.keep(count, shortest(memory_.values, count, one, top_k, memory_));
    if (!(top_p < 1.0f)) return count;
    return keep_mass_of_list(count, top_p * row_.weigh_list(count, scale_, NOTHING));
  }

  // The same for top-p alone. Mostly a few groups have all of them. Otherwise the row's distribution is flat, and the
  // end is searched in the whole row.
  int keep_mass(int r, float top_p) {
    const double target = top_p * (batch_.mass ? batch_.mass[r] : row_.weigh_row(scale_, NOTHING));
    for (int groups = 32; groups * 4 <= row_.groups(); groups *= 8) {
      const int count = row_.list_first(groups);
      if (row_.weigh_list(count, scale_, NOTHING) >= target) return keep_mass_of_list(count, target);
    }
    row_.weigh_row(scale_, NOTHING, memory_.weights);
    const uint32_t least = ordered(row_.lowest(scale_, NOTHING));
    const Cut cut = shortest(row_.logits(), width_, Weight{memory_.weights}, target, memory_, least);
    return row_.keep(row_.list(unordered(cut.key)), cut);
  }

  int keep_mass_of_list(int count, double target) {
    return row_.keep(count, shortest(memory_.values, count, Weight{memory_.weights}, target, memory_));
  }

  int64_t draw_from_list(int count, float least, double uniform) {
    const double total = row_.weigh_list(count, scale_, least);
    const WeightPlace place = find_group(memory_.sums, (count + GROUP - 1) / GROUP, uniform * total);
    return memory_.tokens[place.group * GROUP + find_inside(memory_.weights + place.group * GROUP, place.rest)];
  }

  // Without top-k and top-p only each group's sum is written.
  int64_t draw_from_row(float least, double uniform) {
    const double total = row_.weigh_row(scale_, least);
    return find_in_row(row_, memory_, scale_, least, uniform * total);
  }

  struct Weight {
    const float *weights;
    double operator()(int i) const { return weights[i]; }
  };

  const PlimsollSampling &batch_;
  const RowMemory &memory_;
  const int width_;
  LogitsRow row_;
  float scale_ = 0.0f;
};

inline int64_t sampling_workspace(int32_t width, int32_t threads) {
  return static_cast<int64_t>(RowMemory(width, nullptr).bytes) * threads;
}

// Creates a worker for each thread and calls worker(r) for each row.
template <class Worker, class Batch>
inline void each_row(const Batch &batch, int threads) {
  const size_t bytes = RowMemory(batch.width, nullptr).bytes;
  Crew(threads).each(batch.rows, 1, [&](int begin, int end, int member) {
    const RowMemory memory(batch.width, static_cast<char *>(batch.workspace) + bytes * member);
    Worker worker(batch, memory);
    for (int r = begin; r < end; r++) worker(r);
  });
}

inline void sample(const PlimsollSampling *batch, int32_t threads) { each_row<Chooser>(*batch, threads); }

}  // namespace PLIMSOLL_ISA
