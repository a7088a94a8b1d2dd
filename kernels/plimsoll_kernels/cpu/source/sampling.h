// Choosing a token for each row of logits: the largest, or one drawn by temperature, top-k, top-p and min-p.
//
// Each filter keeps a beginning of the tokens in order (larger logits first, of equals the one that comes first in the
// vocabulary). So nothing is ever sorted: what is looked for is where the beginning ends. A row is read once for the
// maxima of its groups. The k-th largest of them bounds the k-th largest logit from below, so few groups hold all that
// a top-k can keep, and mostly all that a top-p does: only they are read again. Exponentials of a whole row are taken
// where its whole mass is needed: with top-p alone, or with no filter.
//
// Sums of weights run in one order, by groups of tokens: a row's token depends on its logits, its parameters and its
// uniform number alone.
#pragma once

#include <cfloat>

#include "crew.h"
#include "interface.h"
#include "vector.h"

namespace PLIMSOLL_ISA {

using plimsoll::Crew;

constexpr int GROUP = 64;
// Weights are relative to the largest. What is below this can be left out: 2^19 tokens of it together weigh less than
// the step of a uniform number, 2^-53.
constexpr float NOTHING = 2e-22f;
// Lists this short are sorted.
constexpr int FEW = 24;
constexpr int MOST_BINS = 2048;

inline uint32_t set_lanes(ints mask) {
#if LANES == 16
  return _mm512_movepi32_mask(bits<__m512i>(mask));
#else
  return static_cast<uint32_t>(_mm256_movemask_ps(bits<__m256>(mask)));
#endif
}

// Integers in the order of floats; the two zeros are one.
inline uint32_t ordered(float x) {
  const uint32_t u = bits<uint32_t>(x + 0.0f);
  return u ^ (static_cast<uint32_t>(static_cast<int32_t>(u) >> 31) | 0x80000000u);
}

inline float unordered(uint32_t key) { return bits<float>(key & 0x80000000u ? key ^ 0x80000000u : ~key); }

// A beginning of values in order: all above `key`, and the first `ties` of those equal to it.
struct Cut {
  uint32_t key;
  int ties;
};

// What one thread needs for a row.
struct SamplingMemory {
  float *maxima;    // of each group
  double *sums;     // of each group's weights
  float *values;    // logits that may be kept, in the vocabulary's order
  int32_t *tokens;  // theirs
  float *weights;   // theirs
  int32_t *chosen;  // positions in one of the above
  double *bins;
  size_t bytes;

  SamplingMemory(int width, char *memory) {
    const size_t count = static_cast<size_t>(width) + GROUP, groups = count / GROUP;
    char *at = memory;
    auto take = [&](size_t size) {
      char *here = at;
      at += (size + 63) / 64 * 64;
      return here;
    };
    maxima = reinterpret_cast<float *>(take(groups * sizeof(float)));
    sums = reinterpret_cast<double *>(take(groups * sizeof(double)));
    values = reinterpret_cast<float *>(take(count * sizeof(float)));
    tokens = reinterpret_cast<int32_t *>(take(count * sizeof(int32_t)));
    weights = reinterpret_cast<float *>(take(count * sizeof(float)));
    chosen = reinterpret_cast<int32_t *>(take(count * sizeof(int32_t)));
    bins = reinterpret_cast<double *>(take(MOST_BINS * sizeof(double)));
    bytes = at - memory;
  }
};

// The shortest beginning that reaches `limit` of values in order, of which those before it make up `reached`.
template <class Position, class Measure>
Cut walk_sorted(const float *values, int count, const Position &position, const Measure &measure, double reached,
                double limit) {
  Cut cut{UINT32_MAX, 0};
  for (int i = 0; i < count; i++) {
    const uint32_t key = ordered(values[position(i)]);
    cut = {key, key == cut.key ? cut.ties + 1 : 1};
    reached += measure(position(i));
    if (reached >= limit) break;
  }
  return cut;
}

// The same for equal values or few in the vocabulary's order.
template <class Position, class Measure>
Cut walk(const float *values, int count, const Position &position, const Measure &measure, double reached,
         double limit) {
  if (count <= FEW) {
    int sorted[FEW];
    for (int i = 0; i < count; i++) {
      int at = i;
      for (; at > 0 && values[sorted[at - 1]] < values[position(i)]; at--) sorted[at] = sorted[at - 1];
      sorted[at] = position(i);
    }
    return walk_sorted(values, count, [&](int i) { return sorted[i]; }, measure, reached, limit);
  }
  return walk_sorted(values, count, position, measure, reached, limit);
}

// The shortest beginning of `values` whose measures reach `limit`; all of them if they do not. measure(position) is not
// negative. Bins over the range of the values, then over the one bin in which it ends: a few passes at most, since each
// tells apart at least 256 times as much as the one before.
template <class Measure>
Cut shortest(const float *values, int count, const Measure &measure, double limit, const SamplingMemory &memory) {
  double reached = 0.0;
  bool all = true;
  auto position = [&](int i) { return all ? i : memory.chosen[i]; };
  for (;;) {
    uint32_t low = UINT32_MAX, high = 0;
    for (int i = 0; i < count; i++) {
      const uint32_t key = ordered(values[position(i)]);
      low = key < low ? key : low;
      high = key > high ? key : high;
    }
    if (low == high || count <= FEW) break;
    const int width = 32 - __builtin_clz(high - low), digits = count < 4096 ? 8 : 11;
    const int shift = width > digits ? width - digits : 0;
    const uint32_t top = (high - low) >> shift;
    for (uint32_t b = 0; b <= top; b++) memory.bins[b] = 0.0;
    for (int i = 0; i < count; i++)
      memory.bins[(ordered(values[position(i)]) - low) >> shift] += measure(position(i));
    uint32_t last = top;
    for (; last > 0 && reached + memory.bins[last] < limit; last--) reached += memory.bins[last];
    int found = 0;
    for (int i = 0; i < count; i++) {
      const int p = position(i);
      memory.chosen[found] = p;
      found += (ordered(values[p]) - low) >> shift == last;
    }
    count = found;
    all = false;
  }
  return walk(values, count, position, measure, reached, limit);
}

// One row at a time: `choose` reads everything there is to know about it.
class Chooser {
 public:
  Chooser(const PlimsollSampling &batch, const SamplingMemory &memory)
      : batch_(batch), memory_(memory), width_(batch.width), groups_((batch.width + GROUP - 1) / GROUP) {}

  void choose(int r) {
    row_ = batch_.logits + r * batch_.stride;
    const int whole = width_ / GROUP * GROUP;
    for (int i = 0; i < GROUP; i++) tail_[i] = whole + i < width_ ? row_[whole + i] : -INFINITE;
    best_ = read_maxima();
    batch_.best[r] = best_;
    const bool finite = best_ - best_ == 0.0f;
    batch_.tokens[r] = finite && batch_.temperature[r] >= FLT_MIN ? draw(r) : find_best();
  }

 private:
  // A group's logits; what the last one lacks is -infinity.
  const float *group(int g) const {
    return (g + 1) * GROUP <= width_ ? row_ + static_cast<size_t>(g) * GROUP : tail_;
  }

  // The maxima of all groups, and the largest of them; NaN if there is one in the row.
  float read_maxima() {
    floats total{}, best = broadcast(-INFINITE);
    for (int g = 0; g < groups_; g++) {
      const float *from = group(g);
      floats most = load(from), all = most;
      for (int i = LANES; i < GROUP; i += LANES) {
        const floats v = load(from + i);
        most = largest(most, v);
        all += v;
      }
      memory_.maxima[g] = maximum(most);
      best = largest(best, most);
      total += all;  // a NaN stays one; so does the sum of both infinities, which find_nan() tells apart
    }
    if (any(total != total) && find_nan() >= 0) return NAN;
    return maximum(best);
  }

  int find_nan() const {
    for (int i = 0; i < width_; i++)
      if (row_[i] != row_[i]) return i;
    return -1;
  }

  int find_best() const {
    if (best_ != best_) return find_nan();
    int g = 0;
    while (memory_.maxima[g] != best_) g++;
    const float *from = group(g);
    int i = 0;
    while (from[i] != best_) i++;
    return g * GROUP + i;
  }

  int64_t draw(int r) {
    const float top_p = batch_.top_p[r], least = batch_.min_p[r] > NOTHING ? batch_.min_p[r] : NOTHING;
    const int top_k = batch_.top_k[r] > 0 && batch_.top_k[r] < width_ ? batch_.top_k[r] : width_;
    const double uniform = batch_.uniform[r];
    scale_ = 1.0f / batch_.temperature[r];
    if (top_k == width_ && !(top_p < 1.0f)) return draw_from_row(least, uniform);
    double mass;
    int count;
    if (top_k < width_) {
      count = collect(top_k);
      count = keep(count, shortest(memory_.values, count, [](int) { return 1.0; }, top_k, memory_));
      mass = weigh_list(count, NOTHING);
    } else {
      mass = weigh_row(NOTHING);
      count = collect_mass(top_p * mass);
    }
    if (top_p < 1.0f) {
      const float *weights = memory_.weights;
      const auto weight = [weights](int i) { return static_cast<double>(weights[i]); };
      count = keep(count, shortest(memory_.values, count, weight, top_p * mass, memory_));
    }
    const double total = weigh_list(count, least);
    const Place place = find((count + GROUP - 1) / GROUP, uniform * total);
    return memory_.tokens[place.group * GROUP + find_inside(memory_.weights + place.group * GROUP, place.rest)];
  }

  // Without top-k and top-p nothing is written but each group's sum.
  int64_t draw_from_row(float least, double uniform) {
    const Place place = find(groups_, uniform * weigh_row(least));
    float weights[GROUP];
    weigh(group(place.group), least, weights);
    return place.group * GROUP + find_inside(weights, place.rest);
  }

  // Weights of a group's logits, and their sum; those below `least` count as nothing.
  float weigh(const float *from, float least, float *weights) const {
    floats total{};
    for (int i = 0; i < GROUP; i += LANES) {
      floats w = exponential((load(from + i) - best_) * scale_);
      w = w < least ? floats{} : w;
      store(weights + i, w);
      total += w;
    }
    return sum(total);
  }

  // The weight of a row, and each group's; those that cannot hold anything are not read.
  double weigh_row(float least) const {
    // A thousandth less, so that rounding decides nothing here.
    const double lowest = best_ + (std::log(static_cast<double>(least)) - 1e-3) / scale_;
    float weights[GROUP];
    double total = 0.0;
    for (int g = 0; g < groups_; g++) {
      memory_.sums[g] = memory_.maxima[g] < lowest ? 0.0 : weigh(group(g), least, weights);
      total += memory_.sums[g];
    }
    return total;
  }

  // The same for the list.
  double weigh_list(int count, float least) const {
    for (int i = count; i % GROUP; i++) memory_.values[i] = -INFINITE;
    double total = 0.0;
    for (int i = 0; i < count; i += GROUP) {
      memory_.sums[i / GROUP] = weigh(memory_.values + i, least, memory_.weights + i);
      total += memory_.sums[i / GROUP];
    }
    return total;
  }

  // Lists at least the `wanted` first tokens.
  int collect(int wanted) const {
    if (wanted > groups_) return list(-INFINITE);
    const Cut cut = shortest(memory_.maxima, groups_, [](int) { return 1.0; }, wanted, memory_);
    return list(unordered(cut.key));
  }

  // Lists first tokens that together weigh as much. Each try reads several times as many as the one before: together
  // they cost little more than the last.
  int collect_mass(double wanted) const {
    for (int groups = 32;; groups *= 8) {
      const int count = collect(groups);
      if (weigh_list(count, NOTHING) >= wanted || groups > groups_) return count;
    }
  }

  // Lists the tokens whose logits are not below this.
  int list(float least) const {
    int count = 0;
    for (int g = 0; g < groups_; g++) {
      if (memory_.maxima[g] < least) continue;
      const float *from = group(g);
      for (int i = 0; i < GROUP; i += LANES)
        for (uint32_t left = set_lanes(load(from + i) >= least); left; left &= left - 1) {
          const int at = i + __builtin_ctz(left);
          memory_.values[count] = from[at];
          memory_.tokens[count++] = g * GROUP + at;
        }
    }
    while (memory_.tokens[count - 1] >= width_) count--;  // the last group is filled up with -infinity
    return count;
  }

  // Leaves a beginning of the list.
  int keep(int count, Cut cut) const {
    int kept = 0;
    for (int i = 0; i < count; i++) {
      const float value = memory_.values[i];
      const uint32_t key = ordered(value);
      const bool tie = key == cut.key && cut.ties > 0;
      cut.ties -= tie;
      memory_.values[kept] = value;
      memory_.tokens[kept] = memory_.tokens[i];
      kept += tie || key > cut.key;
    }
    return kept;
  }

  struct Place {
    int group;
    double rest;
  };

  // The group in which the sums pass the target, and what of it is left there; at most the last that adds anything.
  Place find(int groups, double target) const {
    double before = 0.0;
    Place place{0, 0.0};
    for (int g = 0; g < groups; g++) {
      if (memory_.sums[g] == 0.0) continue;
      place = {g, target - before};
      before += memory_.sums[g];
      if (before > target) break;
    }
    return place;
  }

  static int find_inside(const float *weights, double target) {
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

  const PlimsollSampling &batch_;
  const SamplingMemory &memory_;
  const int width_, groups_;
  const float *row_ = nullptr;
  float best_ = 0.0f, scale_ = 0.0f;
  float tail_[GROUP];
};

inline int64_t sampling_workspace(int32_t width, int32_t threads) {
  return static_cast<int64_t>(SamplingMemory(width, nullptr).bytes) * threads;
}

inline void sample(const PlimsollSampling *batch, int32_t threads) {
  const size_t bytes = SamplingMemory(batch->width, nullptr).bytes;
  Crew(threads).each(batch->rows, 1, [&](int begin, int end, int member) {
    const SamplingMemory memory(batch->width, static_cast<char *>(batch->workspace) + bytes * member);
    Chooser chooser(*batch, memory);
    for (int r = begin; r < end; r++) chooser.choose(r);
  });
}

}  // namespace PLIMSOLL_ISA
