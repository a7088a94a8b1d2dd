// The exchange of ranks on one machine, over a segment of shared memory whose initial bytes are zero.
//
// A call consists of rounds. In a round a rank writes to its slot, posts the round's number, waits until all others have
// posted it, and reads their slots. Each rank has two slots for odd and even rounds: a rank overwrites a slot only after
// all ranks have posted the next round, for which they have read it.
#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <new>

#include "crew.h"
#include "exchange.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace plimsoll {

namespace {

// In one round, without shares, up to this size.
constexpr size_t ONE_SHOT = 64 << 10;
// The bytes of a larger sum that a round moves.
constexpr size_t PIECE = 128 << 10;
constexpr size_t SLOT = PIECE + PIECE / 2 + 4096; // a piece, and a share of the sums of the piece before
constexpr size_t HEAD = 8192;
constexpr uint32_t ABORTED = 1, ROUND = 2;

using Word = std::atomic<uint32_t>;

// Not FUTEX_PRIVATE: the waiting processes share the word.
void sleep_while(Word &word, uint32_t value) {
  syscall(SYS_futex, reinterpret_cast<uint32_t *>(&word), FUTEX_WAIT, value, nullptr, nullptr, 0);
}

void wake(Word &word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t *>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

struct Call {
  int64_t kind, size;
};

// The word of each rank: ROUND x the number of its last round, which wraps around, plus ABORTED. Waiters sleep on it, so
// an abort changes the word itself and no wake-up is lost.
struct alignas(128) Mailbox {
  Word posted;
  Word sleepers;
  std::atomic<int32_t> core; // on which the rank last posted
  Call calls[2]; // of the last two rounds
};

// Two ranks whose calls differ.
struct Mismatch {
  Word state; // 0: none, 1: being written, 2: written
  int32_t rank, other;
  Call call, other_call;
};

struct Segment {
  Mailbox mailboxes[MOST_RANKS];
  cpu_set_t cores[MOST_RANKS]; // on which each rank may run, written before its first round
  Mismatch mismatch;

  static size_t bytes(int ranks) { return HEAD + 2 * SLOT * ranks; }

  char *slot(int rank, uint32_t round) {
    return reinterpret_cast<char *>(this) + HEAD + SLOT * (2 * rank + (round & 1));
  }
  float *piece(int rank, uint32_t round) { return reinterpret_cast<float *>(slot(rank, round)); }
  float *sums(int rank, uint32_t round) { return reinterpret_cast<float *>(slot(rank, round) + PIECE); }

  void abort(int ranks) {
    for (int i = 0; i < ranks; i++) {
      mailboxes[i].posted.fetch_or(ABORTED, std::memory_order_seq_cst);
      wake(mailboxes[i].posted);
    }
  }
};
static_assert(sizeof(Segment) <= HEAD);

// Returns a segment, or null with errno.
Segment *map(int descriptor, int ranks) {
  struct stat found;
  if (fstat(descriptor, &found)) return nullptr;
  if (static_cast<size_t>(found.st_size) < Segment::bytes(ranks)) {
    errno = EINVAL;
    return nullptr;
  }
  void *memory = mmap(nullptr, Segment::bytes(ranks), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<Segment *>(memory);
}

struct SharedExchange : Exchange {
  Segment *segment;
  uint32_t round; // the number of this rank's last round
  bool met; // all ranks have posted a round
  bool shares_cores; // there are fewer cores than ranks, or this rank has not met all

  bool sum(const Part &part) {
    const int64_t size = static_cast<int64_t>(part.count() * sizeof(float));
    const Call call{PLIMSOLL_COLLECTIVE_SUM, size};
    return static_cast<size_t>(size) <= ONE_SHOT ? sum_at_once(part, call) : sum_in_pieces(part, call);
  }

  bool sum_at_once(const Part &part, const Call &call) {
    part.read(0, part.count(), segment->piece(rank, round + 1));
    post(call);
    if (!wait(call)) return false;
    const float *parts[MOST_RANKS];
    for (int i = 0; i < ranks; i++) parts[i] = segment->piece(i, round);
    part.write(0, part.count(), parts, ranks);
    return true;
  }

  // Each round moves the parts of a piece to the ranks that add them, and the sums of the piece before to all ranks.
  bool sum_in_pieces(const Part &part, const Call &call) {
    constexpr size_t MOST = PIECE / sizeof(float);
    const size_t count = part.count(), pieces = (count + MOST - 1) / MOST;
    const auto size_of = [&](size_t k) { return k + 1 < pieces ? MOST : count - k * MOST; };
    for (size_t k = 0; k <= pieces; k++) {
      if (k < pieces) part.read(k * MOST, size_of(k), segment->piece(rank, round + 1));
      if (k > 0) add_share(Share::of(size_of(k - 1), ranks, rank));
      post(call);
      if (k > 0) write_share(part, (k - 1) * MOST, size_of(k - 1), rank);
      if (!wait(call)) return false;
      if (k > 0)
        for (int i = 1; i < ranks; i++) write_share(part, (k - 1) * MOST, size_of(k - 1), (rank + i) % ranks);
    }
    return true;
  }

  // Adds this rank's share of the last round's pieces for the next round.
  void add_share(const Share &share) {
    const float *parts[MOST_RANKS];
    for (int i = 0; i < ranks; i++) parts[i] = segment->piece(i, round) + share.first;
    add_parts(parts, ranks, share.count, segment->sums(rank, round + 1));
  }

  void write_share(const Part &part, size_t first, size_t size, int owner) {
    const Share share = Share::of(size, ranks, owner);
    const float *sums = segment->sums(owner, round);
    part.write(first + share.first, share.count, &sums, 1);
  }

  bool broadcast(char *bytes, size_t size) {
    const Call call{PLIMSOLL_COLLECTIVE_BROADCAST, static_cast<int64_t>(size)};
    size_t done = 0;
    do {
      const size_t moved = size - done < PIECE ? size - done : PIECE;
      if (rank == 0 && moved) std::memcpy(segment->slot(0, round + 1), bytes + done, moved);
      post(call);
      if (!wait(call)) return false;
      if (rank > 0 && moved) std::memcpy(bytes + done, segment->slot(0, round), moved);
      done += moved;
    } while (done < size);
    return true;
  }

  // Begins the next round: others may read this rank's slot.
  void post(const Call &call) {
    Mailbox &own = segment->mailboxes[rank];
    own.calls[++round & 1] = call;
    own.core.store(sched_getcpu(), std::memory_order_relaxed);
    own.posted.fetch_add(ROUND, std::memory_order_seq_cst);
    if (own.sleepers.load(std::memory_order_seq_cst) > 0) wake(own.posted);
  }

  // Waits until all ranks have posted this round.
  bool wait(const Call &call) {
    for (int i = 1; i < ranks; i++) {
      const int other = (rank + i) % ranks;
      Mailbox &theirs = segment->mailboxes[other];
      if (!arrived(theirs.posted.load(std::memory_order_acquire))) wait_for(theirs);
      if (theirs.posted.load(std::memory_order_acquire) & ABORTED) return stopped();
      const Call &made = theirs.calls[round & 1];
      if (check && (made.kind != call.kind || made.size != call.size)) return differ(other, call, made);
    }
    if (!met) meet();
    return true;
  }

  // Counts the cores of all ranks.
  void meet() {
    cpu_set_t all = segment->cores[0];
    for (int i = 1; i < ranks; i++) CPU_OR(&all, &all, &segment->cores[i]);
    shares_cores = CPU_COUNT(&all) < ranks;
    met = true;
  }

  // Whether a rank with this word has posted the round, or was aborted.
  bool arrived(uint32_t word) const {
    return (word & ABORTED) || static_cast<int32_t>((word & ~ABORTED) - ROUND * round) >= 0;
  }

  void wait_for(Mailbox &theirs) {
    // On a busy machine both may be on one core, where the other cannot run while this rank spins.
    Patience patience(shares_cores || theirs.core.load(std::memory_order_relaxed) == sched_getcpu());
    while (!arrived(theirs.posted.load(std::memory_order_acquire))) {
      if (patience.spin()) continue;
      rest();
      theirs.sleepers.fetch_add(1, std::memory_order_seq_cst);
      uint32_t word;
      while (!arrived(word = theirs.posted.load(std::memory_order_seq_cst))) sleep_while(theirs.posted, word);
      theirs.sleepers.fetch_sub(1, std::memory_order_seq_cst);
    }
    status.waiting += patience.seconds();
  }

  // Records why the group was aborted.
  bool stopped() {
    const Mismatch &found = segment->mismatch;
    if (found.state.load(std::memory_order_acquire) != 2) return aborted();
    return mismatch(found.rank, found.call, found.other, found.other_call);
  }

  bool differ(int other, const Call &call, const Call &made) {
    Mismatch &shared = segment->mismatch;
    uint32_t none = 0;
    if (shared.state.compare_exchange_strong(none, 1)) {
      shared.rank = rank;
      shared.call = call;
      shared.other = other;
      shared.other_call = made;
      shared.state.store(2, std::memory_order_release);
    }
    segment->abort(ranks);
    return mismatch(rank, call, other, made);
  }

  bool mismatch(int one, const Call &call, int other, const Call &made) {
    return Exchange::mismatch(one, call.kind, call.size, other, made.kind, made.size);
  }
};

SharedExchange &own(Exchange &exchange) { return static_cast<SharedExchange &>(exchange); }

constexpr Exchange::Calls CALLS{
    [](Exchange &exchange, const Part &part) { return own(exchange).sum(part); },
    [](Exchange &exchange, char *bytes, size_t size) { return own(exchange).broadcast(bytes, size); },
    [](Exchange &exchange) { own(exchange).segment->abort(exchange.ranks); },
    [](Exchange &exchange) {
      munmap(own(exchange).segment, Segment::bytes(exchange.ranks));
      std::free(&own(exchange));
    },
};

}  // namespace

}  // namespace plimsoll

using plimsoll::Segment;
using plimsoll::SharedExchange;

EXPORTED int64_t plimsoll_exchange_bytes(int32_t ranks) { return static_cast<int64_t>(Segment::bytes(ranks)); }

// Returns the handle of an exchange over a segment, or -errno. A rank continues after the last round that it posted.
EXPORTED int64_t plimsoll_exchange_open(int32_t descriptor, int32_t ranks, int32_t rank, int32_t check) {
  Segment *segment = plimsoll::map(descriptor, ranks);
  if (!segment) return -errno;
  void *memory = std::malloc(sizeof(SharedExchange));
  if (!memory) {
    munmap(segment, Segment::bytes(ranks));
    return -ENOMEM;
  }
  auto *exchange = new (memory) SharedExchange{};
  exchange->calls = &plimsoll::CALLS;
  exchange->ranks = ranks;
  exchange->rank = rank;
  exchange->check = check != 0;
  exchange->segment = segment;
  exchange->round = segment->mailboxes[rank].posted.load(std::memory_order_acquire) / plimsoll::ROUND;
  exchange->shares_cores = true;
  // Without a set of cores, which machines of more than 1,024 do not return, there are enough.
  if (sched_getaffinity(0, sizeof(cpu_set_t), &segment->cores[rank]))
    std::memset(&segment->cores[rank], 0xff, sizeof(cpu_set_t));
  return reinterpret_cast<int64_t>(exchange);
}

// Aborts the group of a segment, without being one of its ranks. Returns 0 or an errno.
// Writes the number of each rank's last round.
EXPORTED int32_t plimsoll_exchange_rounds(int32_t descriptor, int32_t ranks, int64_t *rounds) {
  Segment *segment = plimsoll::map(descriptor, ranks);
  if (!segment) return errno;
  for (int i = 0; i < ranks; i++)
    rounds[i] = segment->mailboxes[i].posted.load(std::memory_order_relaxed) / plimsoll::ROUND;
  munmap(segment, Segment::bytes(ranks));
  return 0;
}

EXPORTED int32_t plimsoll_exchange_abort_segment(int32_t descriptor, int32_t ranks) {
  Segment *segment = plimsoll::map(descriptor, ranks);
  if (!segment) return errno;
  segment->abort(ranks);
  munmap(segment, Segment::bytes(ranks));
  return 0;
}
