// One row of logits, read so that its largest are found without a sort; shared by sampling and log probabilities.
//
// A row is read once for the maxima of its groups. The k-th largest maximum bounds the k-th largest logit from below:
// few groups can have logits that a top-k keeps, and mostly all that a top-p keeps, and only these are read again.
#pragma once

#include <cfloat>

#include "interface.h"
#include "vector.h"

namespace PLIMSOLL_ISA {

constexpr int GROUP = 64;
// Weights are relative to the largest. Weights below this are ignored: 2^19 tokens of it together weigh less than the
// step of a uniform number, 2^-53.
constexpr float NOTHING = 2e-22f;
// Lists up to this length are sorted.
constexpr int FEW = 24;
constexpr int MOST_BINS = 2048;
#if LANES == 16
alignas(64) constexpr int32_t COUNTING[LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#endif

// Integers in the order of floats; the two zeros are equal.
inline uint32_t ordered(float x) {
  const uint32_t u = bits<uint32_t>(x + 0.0f);
  return u ^ (static_cast<uint32_t>(static_cast<int32_t>(u) >> 31) | 0x80000000u);
}

inline float unordered(uint32_t key) { return bits<float>(key & 0x80000000u ? key ^ 0x80000000u : ~key); }

// The first of ordered values: all above `key`, and the first `ties` of those equal to it.
struct Cut {
  uint32_t key;
  int ties;
};

// The memory of one thread for a row.
struct RowMemory {
  float *maxima; // of each group
  double *sums; // of each group's weights
  float *values; // logits that may be kept, in the vocabulary's order
  int32_t *tokens; // their tokens
  float *weights; // their weights
  int32_t *chosen; // indices into the arrays above
  double *bins;
  size_t bytes;

  RowMemory(int width, char *memory) {
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

// The shortest prefix of sorted values whose measure reaches `limit`, if values before it have the measure `reached`.
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

// The same for values in the vocabulary's order: up to FEW, which are sorted, or more that are all equal.
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

// The shortest prefix of the sorted `values` whose measures reach `limit`; all of them if they do not.
// measure(position) is not negative, and 0 for keys below `least`. Uses bins over the range of the values, then over
// the bin in which the prefix ends: a few passes at most, because each divides the range by at least 256.
template <class Measure>
Cut shortest(const float *values, int count, const Measure &measure, double limit, const RowMemory &memory,
             uint32_t least = 0) {
  double reached = 0.0;
  bool all = true;
  auto position = [&](int i) { return all ? i : memory.chosen[i]; };
  auto key_at = [&](int p) {
    const uint32_t key = ordered(values[p]);
    return key > least ? key : least;
  };
  for (;;) {
    uint32_t low = UINT32_MAX, high = 0;
    for (int i = 0; i < count; i++) {
      const uint32_t key = key_at(position(i));
      low = key < low ? key : low;
      high = key > high ? key : high;
    }
    if (low == high || count <= FEW) break;
    const int width = 32 - __builtin_clz(high - low), digits = count < 4096 ? 8 : 11;
    const int shift = width > digits ? width - digits : 0;
    const uint32_t top = (high - low) >> shift;
    for (uint32_t b = 0; b <= top; b++) memory.bins[b] = 0.0;
    for (int i = 0; i < count; i++)
      memory.bins[(key_at(position(i)) - low) >> shift] += measure(position(i));
    uint32_t last = top;
    for (; last > 0 && reached + memory.bins[last] < limit; last--) reached += memory.bins[last];
    int found = 0;
    for (int i = 0; i < count; i++) {
      const int p = position(i);
      memory.chosen[found] = p;
      found += (key_at(p) - low) >> shift == last;
    }
    count = found;
    all = false;
  }
  return walk(values, count, position, measure, reached, limit);
}

// Reads one row at a time; call `read` before the other functions.
class LogitsRow {
 public:
  LogitsRow(const RowMemory &memory, int width)
      : memory_(memory), width_(width), groups_((width + GROUP - 1) / GROUP) {}

  void read(const float *row) {
    row_ = row;
    const int whole = width_ / GROUP * GROUP;
    for (int i = 0; i < GROUP; i++) tail_[i] = whole + i < width_ ? row_[whole + i] : -INFINITE;
    best_ = read_maxima();
  }

  // Prepares to weigh a row that was read before, with its maxima in the memory, relative to another largest logit.
  void resume(const float *row, float best) {
    row_ = row;
    const int whole = width_ / GROUP * GROUP;
    for (int i = 0; i < GROUP; i++) tail_[i] = whole + i < width_ ? row_[whole + i] : -INFINITE;
    best_ = best;
  }

  // The largest logit; NaN if there is one.
  float best() const { return best_; }
  bool finite() const { return best_ - best_ == 0.0f; }
  int groups() const { return groups_; }
  const float *logits() const { return row_; }

  // A group's logits; the last one is padded with -infinity.
  const float *group(int g) const {
    return (g + 1) * GROUP <= width_ ? row_ + static_cast<size_t>(g) * GROUP : tail_;
  }

  // The token of the largest logit: the first of equal ones, or of NaNs.
  int find_best() const {
    if (best_ != best_) return find_nan();
    int g = 0;
    while (memory_.maxima[g] != best_) g++;
    const float *from = group(g);
    int i = 0;
    while (from[i] != best_) i++;
    return g * GROUP + i;
  }

  // Lists at least the `wanted` first tokens.
  int list_first(int wanted) const {
    if (wanted > groups_) return list(-INFINITE);
    const Cut cut = shortest(memory_.maxima, groups_, [](int) { return 1.0; }, wanted, memory_);
    return list(unordered(cut.key));
  }

  // Lists the tokens whose logits are at least `least`.
  int list(float least) const {
    int count = 0;
    for (int g = 0; g < groups_; g++) {
      if (memory_.maxima[g] < least) continue;
      const float *from = group(g);
      for (int i = 0; i < GROUP; i += LANES) count += append(load(from + i), least, g * GROUP + i, count);
    }
    while (memory_.tokens[count - 1] >= width_) count--; // the last group is padded with -infinity
    return count;
  }

  // The number of larger logits.
  int count_above(float value) const {
    ints found{};
    for (int g = 0; g < groups_; g++) {
      if (memory_.maxima[g] <= value) continue;
      const float *from = group(g);
      for (int i = 0; i < GROUP; i += LANES) found -= load(from + i) > value;
    }
    int count = 0;
    for (int i = 0; i < LANES; i++) count += found[i];
    return count;
  }

  // Keeps the part of the list before the cut.
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

  // Weights of a group's logits, and their sum; those below `least` count as 0.
  float weigh(const float *from, float scale, float least, float *weights) const {
    floats total{};
    for (int i = 0; i < GROUP; i += LANES) {
      floats w = exponential((load(from + i) - best_) * scale);
      w = w < least ? floats{} : w;
      store(weights + i, w);
      total += w;
    }
    return sum(total);
  }

  // Logits below this have weights below `least`; it is slightly lower, to be safe from rounding.
  float lowest(float scale, float least) const {
    const double bound = best_ + (std::log(static_cast<double>(least)) - 1e-3) / scale;
    return std::nextafter(bound > -FLT_MAX ? static_cast<float>(bound) : -INFINITE, -INFINITE);
  }

  // The weight of a row, and of each group; groups that only have smaller weights are not read. With `all` also each
  // token's.
  double weigh_row(float scale, float least, float *all = nullptr) const {
    const float bound = lowest(scale, least);
    float weights[GROUP];
    double total = 0.0;
    for (int g = 0; g < groups_; g++) {
      float *to = all ? all + static_cast<size_t>(g) * GROUP : weights;
      const bool light = memory_.maxima[g] < bound;
      if (light && all) std::memset(to, 0, GROUP * sizeof(float));
      memory_.sums[g] = light ? 0.0 : weigh(group(g), scale, least, to);
      total += memory_.sums[g];
    }
    return total;
  }

  // The same for the list.
  double weigh_list(int count, float scale, float least) const {
    for (int i = count; i % GROUP; i++) memory_.values[i] = -INFINITE;
    double total = 0.0;
    for (int i = 0; i < count; i += GROUP) {
      memory_.sums[i / GROUP] = weigh(memory_.values + i, scale, least, memory_.weights + i);
      total += memory_.sums[i / GROUP];
    }
    return total;
  }

 private:
  // Reads the maxima of all groups, and the largest of them; NaN if there is one in the row.
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
      total += all; // a NaN stays one; so does the sum of both infinities, which find_nan() distinguishes
    }
    if (any(total != total) && find_nan() >= 0) return NAN;
    return maximum(best);
  }

  int find_nan() const {
    for (int i = 0; i < width_; i++)
      if (row_[i] != row_[i]) return i;
    return -1;
  }

  // Writes a vector's logits that are at least `least`, and their tokens, counted from `token` on; returns how many.
  int append(floats v, float least, int token, int at) const {
#if LANES == 16
    const __mmask16 chosen = _mm512_movepi32_mask(bits<__m512i>(v >= least));
    const __m512i tokens = _mm512_add_epi32(_mm512_set1_epi32(token), _mm512_load_si512(COUNTING));
    _mm512_storeu_ps(memory_.values + at, _mm512_maskz_compress_ps(chosen, bits<__m512>(v)));
    _mm512_storeu_si512(memory_.tokens + at, _mm512_maskz_compress_epi32(chosen, tokens));
    return __builtin_popcount(chosen);
#else
    int count = 0;
    for (int left = _mm256_movemask_ps(bits<__m256>(v >= least)); left; left &= left - 1) {
      const int lane = __builtin_ctz(left);
      memory_.values[at + count] = v[lane];
      memory_.tokens[at + count++] = token + lane;
    }
    return count;
#endif
  }

  const RowMemory &memory_;
  const int width_, groups_;
  const float *row_ = nullptr;
  float best_ = 0.0f;
  float tail_[GROUP];
};

}  // namespace PLIMSOLL_ISA
