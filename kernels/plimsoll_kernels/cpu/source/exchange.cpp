#include "exchange.h"

#include <immintrin.h>

#include <cstdlib>
#include <cstring>

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace plimsoll {

namespace {

// Floats that are added at a time: they stay in the first-level cache.
constexpr size_t CHUNK = 2048;
constexpr double LONG_SPIN = 50e-6, SHORT_SPIN = 2e-6;
constexpr int PAUSES = 8;

// Calls work(row, column, offset, length) for the runs of consecutive elements in [first, first + count).
template <class Work>
void each_run(size_t width, size_t first, size_t count, const Work &work) {
  for (size_t done = 0; done < count;) {
    const size_t row = (first + done) / width, column = (first + done) % width;
    const size_t left = count - done, length = width - column < left ? width - column : left;
    work(row, column, done, length);
    done += length;
  }
}

}  // namespace

void Part::read(size_t first, size_t count, float *to) const {
  if (source_stride == width) {
    std::memcpy(to, source + first, count * sizeof(float));
    return;
  }
  each_run(width, first, count, [&](size_t row, size_t column, size_t offset, size_t length) {
    std::memcpy(to + offset, source + row * source_stride + column, length * sizeof(float));
  });
}

void Part::write(size_t first, size_t count, const float *const *parts, int ranks) const {
  float sum[CHUNK];
  const float *from[MOST_RANKS];
  // Dense rows are one long row.
  const size_t across = target_stride == width ? count + first : width;
  for (size_t done = 0; done < count; done += CHUNK) {
    const size_t size = count - done < CHUNK ? count - done : CHUNK;
    for (int i = 0; i < ranks; i++) from[i] = parts[i] + done;
    if (ranks > 1) add_parts(from, ranks, size, sum);
    const float *sums = ranks > 1 ? sum : from[0];
    each_run(across, first + done, size, [&](size_t row, size_t column, size_t offset, size_t length) {
      float *to = target + row * target_stride + column;
      const float *x = sums + offset;
      if (adds)
        for (size_t i = 0; i < length; i++) to[i] += x[i] * scale;
      else
        for (size_t i = 0; i < length; i++) to[i] = x[i] * scale;
    });
  }
}

void add_parts(const float *const *parts, int ranks, size_t count, float *__restrict sum) {
  const float *a = parts[0], *b = parts[1];
  for (size_t i = 0; i < count; i++) sum[i] = a[i] + b[i];
  for (int r = 2; r < ranks; r++) {
    const float *part = parts[r];
    for (size_t i = 0; i < count; i++) sum[i] += part[i];
  }
}

bool Exchange::fail(PlimsollExchangeStatus failure) {
  if (status.failure) return false;
  failure.seconds = status.seconds;
  failure.waiting = status.waiting;
  status = failure;
  return false;
}

bool Exchange::aborted() {
  PlimsollExchangeStatus failure{};
  failure.failure = PLIMSOLL_FAILURE_ABORTED;
  return fail(failure);
}

bool Exchange::closed(int other, int error) {
  PlimsollExchangeStatus failure{};
  failure.failure = PLIMSOLL_FAILURE_CLOSED;
  failure.rank = other;
  failure.error = error;
  return fail(failure);
}

bool Exchange::mismatch(int one, int kind, int64_t size, int other, int other_kind, int64_t other_size) {
  PlimsollExchangeStatus failure{};
  failure.failure = PLIMSOLL_FAILURE_MISMATCH;
  failure.rank = one;
  failure.kind = kind;
  failure.size = size;
  failure.other = other;
  failure.other_kind = other_kind;
  failure.other_size = other_size;
  return fail(failure);
}

Patience::Patience(bool shares_cores)
    : since_(exchange_seconds()), until_(since_ + (shares_cores ? SHORT_SPIN : LONG_SPIN)) {}

bool Patience::spin() {
  for (int i = 0; i < PAUSES; i++) _mm_pause();
  return exchange_seconds() < until_;
}

}  // namespace plimsoll

using plimsoll::Exchange;

// The functions of Python (exchange.py) on the handle of an exchange: 1 if they succeeded, 0 if the exchange failed.

// Sums `count` floats in place.
EXPORTED int32_t plimsoll_exchange_sum(Exchange *exchange, float *values, int64_t count) {
  const size_t width = static_cast<size_t>(count);
  return exchange->sum({values, width, values, width, 1, width, 1.0f, false});
}

EXPORTED int32_t plimsoll_exchange_broadcast(Exchange *exchange, char *bytes, int64_t size) {
  return exchange->broadcast(bytes, static_cast<size_t>(size));
}

// May be called by any thread, until `close`.
EXPORTED void plimsoll_exchange_abort(Exchange *exchange) { exchange->calls->abort(*exchange); }

EXPORTED void plimsoll_exchange_close(Exchange *exchange) { exchange->calls->close(*exchange); }

EXPORTED const PlimsollExchangeStatus *plimsoll_exchange_status(const Exchange *exchange) { return &exchange->status; }
