// Log probabilities of sampled tokens and of the most likely ones.
#pragma once

#include "sampling.h"

namespace PLIMSOLL_ISA {

class Reporter {
 public:
  Reporter(const PlimsollReports &batch, const RowMemory &memory)
      : batch_(batch), memory_(memory), row_(memory, batch.width) {}

  void operator()(int r) {
    const float *logits = batch_.logits + r * batch_.stride;
    const size_t first = static_cast<size_t>(r) * batch_.most;
    row_.read(logits);
    if (!row_.finite()) return refuse(r, first);
    const double norm = std::log(row_.weigh_row(1.0f, NOTHING));
    const auto log_probability = [&](float value) {
      return static_cast<float>(static_cast<double>(value) - row_.best() - norm);
    };
    const float chosen = logits[batch_.tokens[r]];
    batch_.chosen[r] = log_probability(chosen);
    batch_.ranks[r] = 1 + row_.count_above(chosen);
    const int count = list_in_order(batch_.alternatives[r]);
    for (int i = 0; i < count; i++) {
      batch_.top_tokens[first + i] = memory_.tokens[i];
      batch_.top[first + i] = log_probability(memory_.values[i]);
    }
  }

 private:
  void refuse(int r, size_t first) const {
    batch_.chosen[r] = NAN;
    batch_.ranks[r] = 1;
    for (int i = 0; i < batch_.alternatives[r]; i++) {
      batch_.top_tokens[first + i] = i;
      batch_.top[first + i] = NAN;
    }
  }

  // Lists the first `wanted` tokens, the most likely first; they are few.
  int list_in_order(int wanted) const {
    if (wanted == 0) return 0;
    int count = row_.list_first(wanted);
    count = row_.keep(count, shortest(memory_.values, count, one, wanted, memory_));
    for (int i = 1; i < count; i++) {
      const float value = memory_.values[i];
      const int32_t token = memory_.tokens[i];
      int at = i;
      for (; at > 0 && memory_.values[at - 1] < value; at--) {
        memory_.values[at] = memory_.values[at - 1];
        memory_.tokens[at] = memory_.tokens[at - 1];
      }
      memory_.values[at] = value;
      memory_.tokens[at] = token;
    }
    return count;
  }

  const PlimsollReports &batch_;
  const RowMemory &memory_;
  LogitsRow row_;
};

inline void report(const PlimsollReports *batch, int32_t threads) { each_row<Reporter>(*batch, threads); }

}  // namespace PLIMSOLL_ISA
