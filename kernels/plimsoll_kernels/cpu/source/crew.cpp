#include "crew.h"

#include <immintrin.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

namespace plimsoll {

namespace {

constexpr int MOST_THREADS = 256;
// Pauses before a thread sleeps: some tens of microseconds. The time between phases is shorter, between steps longer.
constexpr int PATIENCE = 2000;
// A thread claims at most 1 / PARTS of an even share at a time.
constexpr int PARTS = 8;
constexpr uint32_t CLOSED = UINT32_MAX;

using Word = std::atomic<uint32_t>;

void sleep_while(Word &word, uint32_t value) {
  syscall(SYS_futex, reinterpret_cast<uint32_t *>(&word), FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

void wake(Word &word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t *>(&word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

// The phase and the next item of one member's even share.
struct alignas(64) Claim {
  std::atomic<uint64_t> word{CLOSED};
};

// The current work. Claims are closed before the other fields change, so that a thread that read a mix of old and new
// fields fails to claim.
struct Board {
  Claim claims[MOST_THREADS];
  alignas(64) Word finished{0};
  alignas(64) Word phase{0};
  Word sleepers{0}, leader_asleep{0};
  alignas(64) Word left{0}; // cores that are left to other work
  alignas(64) std::atomic<int> items{0}, least{1}, threads{1};
  std::atomic<void (*)(const void *, int, int, int)> call{nullptr};
  std::atomic<const void *> context{nullptr};
};

Board board;
pthread_mutex_t leading = PTHREAD_MUTEX_INITIALIZER;
int helpers = 0; // started so far; guarded by `leading`
std::atomic<void (*)()> rest_call{nullptr};

struct Range {
  int begin, end;
};

int share_begin(int items, int threads, int member) {
  return static_cast<int>(static_cast<int64_t>(items) * member / threads);
}

// Claims the next range of a member's share; empty if nothing is left of it.
Range claim_of(int owner) {
  std::atomic<uint64_t> &word = board.claims[owner].word;
  uint64_t seen = word.load(std::memory_order_acquire);
  for (;;) {
    const uint32_t next = static_cast<uint32_t>(seen);
    if (next == CLOSED) return {0, 0};
    const int items = board.items.load(std::memory_order_acquire);
    const int threads = board.threads.load(std::memory_order_acquire);
    const int least = board.least.load(std::memory_order_acquire);
    const int begin = static_cast<int>(next), left = share_begin(items, threads, owner + 1) - begin;
    if (left <= 0) return {0, 0};
    int size = left / 2, most = items / (threads * PARTS);
    size = size < most ? size : most;
    size = size > least ? size : least;
    size = size < left ? size : left;
    if (word.compare_exchange_weak(seen, seen + size, std::memory_order_acq_rel, std::memory_order_acquire))
      return {begin, begin + size};
  }
}

// Whether a helper must leave its core, if `left` cores are left to other work.
bool stands_back(int member, uint32_t left) {
  return member > 0 && member + static_cast<int>(left) >= board.threads.load(std::memory_order_acquire);
}

// Claims the next range for a member: from its own share, in order, then from the share of a slower member.
Range claim(int member) {
  const int threads = board.threads.load(std::memory_order_acquire);
  if (member >= threads || stands_back(member, board.left.load(std::memory_order_relaxed))) return {0, 0};
  for (int i = 0; i < threads; i++) {
    const Range range = claim_of((member + i) % threads);
    if (range.end > range.begin) return range;
  }
  return {0, 0};
}

// Processes ranges until none is left.
void work(int member) {
  for (Range mine = claim(member); mine.end > mine.begin; mine = claim(member)) {
    board.call.load(std::memory_order_relaxed)(board.context.load(std::memory_order_relaxed), mine.begin, mine.end,
                                               member);
    board.finished.fetch_add(mine.end - mine.begin, std::memory_order_seq_cst);
    if (member > 0 && board.leader_asleep.load(std::memory_order_seq_cst)) wake(board.finished);
  }
}

void *help(void *argument) {
  const int member = static_cast<int>(reinterpret_cast<intptr_t>(argument));
  for (;;) {
    const uint32_t phase = board.phase.load(std::memory_order_acquire);
    const uint32_t left = board.left.load(std::memory_order_acquire);
    work(member);
    if (left > 0 && stands_back(member, left)) {
      rest();
      sleep_while(board.left, left);
      continue;
    }
    int spins = 0;
    while (board.phase.load(std::memory_order_acquire) == phase && spins++ < PATIENCE) _mm_pause();
    if (spins <= PATIENCE) continue;
    rest();
    board.sleepers.fetch_add(1, std::memory_order_seq_cst);
    sleep_while(board.phase, phase);
    board.sleepers.fetch_sub(1, std::memory_order_seq_cst);
  }
  return nullptr;
}

// Starts helpers. If fewer than wanted can be started, the existing ones do the work.
void hire(int wanted) {
  while (helpers < wanted) {
    pthread_t thread;
    if (pthread_create(&thread, nullptr, help, reinterpret_cast<void *>(static_cast<intptr_t>(helpers + 1)))) return;
    pthread_detach(thread);
    helpers++;
  }
}

// The helpers of a process do not exist in its forked copy, nor does their unfinished work.
void after_fork() {
  helpers = 0;
  for (Claim &claim : board.claims) claim.word.store(CLOSED);
  pthread_mutex_init(&leading, nullptr);
  board.sleepers.store(0);
  board.leader_asleep.store(0);
  board.left.store(0);
}

}  // namespace

void at_rest(void (*call)()) { rest_call.store(call, std::memory_order_relaxed); }

void rest() {
  if (void (*call)() = rest_call.load(std::memory_order_relaxed)) call();
}

void leave(int cores) {
  const uint32_t left = static_cast<uint32_t>(cores < 0 ? 0 : cores > MOST_THREADS ? MOST_THREADS : cores);
  if (board.left.exchange(left, std::memory_order_seq_cst) > left) wake(board.left);
}

Crew::Crew(int threads) : threads_(threads < 1 ? 1 : threads > MOST_THREADS ? MOST_THREADS : threads) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, [] { pthread_atfork(nullptr, nullptr, after_fork); });
  pthread_mutex_lock(&leading);
  hire(threads_ - 1);
}

Crew::~Crew() {
  rest();
  pthread_mutex_unlock(&leading);
}

void Crew::run(int items, int least, Call call, const void *context) const {
  const uint32_t phase = board.phase.load(std::memory_order_relaxed) + 1;
  board.items.store(items, std::memory_order_release);
  board.least.store(least, std::memory_order_release);
  board.threads.store(threads_, std::memory_order_release);
  board.call.store(call, std::memory_order_relaxed);
  board.context.store(context, std::memory_order_relaxed);
  board.finished.store(0, std::memory_order_relaxed);
  const uint64_t tag = static_cast<uint64_t>(phase) << 32;
  for (int member = 0; member < threads_; member++)
    board.claims[member].word.store(tag | share_begin(items, threads_, member), std::memory_order_release);
  board.phase.store(phase, std::memory_order_seq_cst);
  if (board.sleepers.load(std::memory_order_seq_cst) > 0) wake(board.phase);
  work(0);
  const uint32_t all = static_cast<uint32_t>(items);
  for (int spins = 0; board.finished.load(std::memory_order_acquire) != all && spins < PATIENCE; spins++) _mm_pause();
  if (board.finished.load(std::memory_order_acquire) != all) {
    rest();
    board.leader_asleep.store(1, std::memory_order_seq_cst);
    uint32_t done;
    while ((done = board.finished.load(std::memory_order_seq_cst)) != all) sleep_while(board.finished, done);
    board.leader_asleep.store(0, std::memory_order_relaxed);
  }
  for (int member = 0; member < threads_; member++)
    board.claims[member].word.store(tag | CLOSED, std::memory_order_seq_cst);
}

}  // namespace plimsoll
