// The exchange of ranks on several machines, over a connected non-blocking socket to each other rank.
//
// A stream has no frames: all ranks make the same calls, so each knows the size of what it receives next.
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

#include "crew.h"
#include "exchange.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace plimsoll {

namespace {

// The most bytes of one system call, and of one rank's share of a piece.
constexpr size_t MOST_BYTES = 256 << 10;
constexpr size_t MOST_FLOATS = MOST_BYTES / sizeof(float);
// Pieces between two ranks that one may send ahead of those that it has added.
constexpr size_t AHEAD = 4;

// Both directions of a connection: the bytes that remain to be sent and received.
struct Stream {
  int descriptor, rank;
  const char *out;
  size_t out_left;
  char *in;
  size_t in_left;

  bool done() const { return !out_left && !in_left; }
};

struct Call {
  int64_t kind, size;
};

struct TcpExchange : Exchange {
  int descriptors[MOST_RANKS]; // own: -1
  std::atomic<bool> stopped;
  float *theirs, *sums, *mine; // a piece of each rank, MOST_FLOATS each; the sum of this rank's share; its own pieces

  static size_t floats(int ranks) {
    const size_t own = static_cast<size_t>(ranks) > AHEAD ? ranks : AHEAD;
    return (own + ranks + 1) * MOST_FLOATS;
  }

  bool sum(const Part &part) {
    if (!agree({PLIMSOLL_COLLECTIVE_SUM, static_cast<int64_t>(part.count() * sizeof(float))})) return false;
    return ranks == 2 ? sum_of_two(part) : sum_in_shares(part);
  }

  // Sends all of this rank's part while it receives and adds the other's.
  bool sum_of_two(const Part &part) {
    const size_t count = part.count(), pieces = (count + MOST_FLOATS - 1) / MOST_FLOATS;
    const auto size_of = [&](size_t k) { return k + 1 < pieces ? MOST_FLOATS : count - k * MOST_FLOATS; };
    const auto own = [&](size_t k) { return mine + k % AHEAD * MOST_FLOATS; };
    const float *parts[2];
    Stream stream = to(1 - rank);
    size_t sending = 0, receiving = 0; // pieces
    for (;;) {
      if (!stream.out_left && sending < pieces && sending < receiving + AHEAD) {
        part.read(sending * MOST_FLOATS, size_of(sending), own(sending));
        send(stream, own(sending), size_of(sending));
        sending++;
      }
      // Only pieces that were read: the other rank may be faster than this one sends.
      if (!stream.in_left && receiving < sending) receive(stream, theirs, size_of(receiving));
      if (stream.done()) return true;
      const size_t waited = stream.in_left;
      if (!advance(&stream, 1)) return false;
      if (!waited || stream.in_left) continue;
      parts[rank] = own(receiving);
      parts[1 - rank] = theirs;
      part.write(receiving * MOST_FLOATS, size_of(receiving), parts, 2);
      receiving++;
    }
  }

  // Sends each rank its share of this rank's part, adds this rank's share, and sends the sum to all.
  bool sum_in_shares(const Part &part) {
    const size_t most = MOST_FLOATS * ranks;
    for (size_t first = 0; first < part.count(); first += most) {
      const size_t size = part.count() - first < most ? part.count() - first : most;
      const auto share_of = [&](int r) { return Share::of(size, ranks, r); };
      part.read(first, size, mine);
      const Share share = share_of(rank);
      const bool scattered = transfer([&](Stream &stream) {
        send(stream, mine + share_of(stream.rank).first, share_of(stream.rank).count);
        receive(stream, piece_of(stream.rank), share.count);
      });
      if (!scattered) return false;
      const float *parts[MOST_RANKS];
      for (int i = 0; i < ranks; i++) parts[i] = i == rank ? mine + share.first : piece_of(i);
      add_parts(parts, ranks, share.count, sums);
      const bool gathered = transfer([&](Stream &stream) {
        send(stream, sums, share.count);
        receive(stream, piece_of(stream.rank), share_of(stream.rank).count);
      });
      if (!gathered) return false;
      for (int i = 0; i < ranks; i++) {
        const float *sum = i == rank ? sums : piece_of(i);
        part.write(first + share_of(i).first, share_of(i).count, &sum, 1);
      }
    }
    return true;
  }

  bool broadcast(char *bytes, size_t size) {
    if (!agree({PLIMSOLL_COLLECTIVE_BROADCAST, static_cast<int64_t>(size)})) return false;
    return transfer([&](Stream &stream) {
      if (rank == 0) {
        stream.out = bytes;
        stream.out_left = size;
      } else if (stream.rank == 0) {
        stream.in = bytes;
        stream.in_left = size;
      }
    });
  }

  // Compares the calls of all ranks, if they are checked.
  bool agree(const Call &call) {
    if (stopped.load()) return fail_here(0, 0);
    if (!check) return true;
    Call made[MOST_RANKS];
    const bool received = transfer([&](Stream &stream) {
      stream.out = reinterpret_cast<const char *>(&call);
      stream.in = reinterpret_cast<char *>(&made[stream.rank]);
      stream.out_left = stream.in_left = sizeof(Call);
    });
    if (!received) return false;
    for (int i = 0; i < ranks; i++)
      if (i != rank && (made[i].kind != call.kind || made[i].size != call.size)) {
        mismatch(rank, call.kind, call.size, i, made[i].kind, made[i].size);
        shut_down();
        return false;
      }
    return true;
  }

  float *piece_of(int other) const { return theirs + other * MOST_FLOATS; }
  Stream to(int other) const { return {descriptors[other], other, nullptr, 0, nullptr, 0}; }

  static void send(Stream &stream, const float *values, size_t count) {
    stream.out = reinterpret_cast<const char *>(values);
    stream.out_left = count * sizeof(float);
  }
  static void receive(Stream &stream, float *values, size_t count) {
    stream.in = reinterpret_cast<char *>(values);
    stream.in_left = count * sizeof(float);
  }

  // Transfers with all other ranks at once; `fill` sets the bytes of each stream.
  template <class Fill>
  bool transfer(const Fill &fill) {
    Stream streams[MOST_RANKS];
    int count = 0;
    for (int i = 1; i < ranks; i++) {
      streams[count] = to((rank + i) % ranks);
      fill(streams[count]);
      if (!streams[count].done()) count++;
    }
    while (count > 0) {
      if (!advance(streams, count)) return false;
      int left = 0;
      for (int i = 0; i < count; i++)
        if (!streams[i].done()) streams[left++] = streams[i];
      count = left;
    }
    return true;
  }

  // Sends or receives some bytes of at least one stream; waits until that is possible.
  bool advance(Stream *streams, int count) {
    bool moved = false;
    if (!move(streams, count, moved)) return false;
    if (moved) return true;
    Patience patience(false); // ranks on other machines have cores of their own
    while (!moved) {
      if (!patience.spin() && !sleep(streams, count)) return false;
      if (!move(streams, count, moved)) return false;
    }
    status.waiting += patience.seconds();
    return true;
  }

  bool move(Stream *streams, int count, bool &moved) {
    for (int i = 0; i < count; i++) {
      Stream &stream = streams[i];
      if (stream.out_left) {
        const ssize_t sent = ::send(stream.descriptor, stream.out, at_most(stream.out_left), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && !again()) return fail_here(stream.rank, errno);
        if (sent > 0) {
          stream.out += sent;
          stream.out_left -= sent;
          moved = true;
        }
      }
      if (stream.in_left) {
        const ssize_t received = recv(stream.descriptor, stream.in, at_most(stream.in_left), MSG_DONTWAIT);
        if (received < 0 && !again()) return fail_here(stream.rank, errno);
        if (received == 0) return fail_here(stream.rank, 0);
        if (received > 0) {
          stream.in += received;
          stream.in_left -= received;
          moved = true;
        }
      }
    }
    return true;
  }

  static size_t at_most(size_t size) { return size < MOST_BYTES ? size : MOST_BYTES; }
  static bool again() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

  // Waits until one of the streams can move, or an abort shut them down.
  bool sleep(Stream *streams, int count) {
    pollfd waited[MOST_RANKS];
    for (int i = 0; i < count; i++) {
      const int events = (streams[i].out_left ? POLLOUT : 0) | (streams[i].in_left ? POLLIN : 0);
      waited[i] = {streams[i].descriptor, static_cast<short>(events), 0};
    }
    rest();
    if (poll(waited, count, -1) < 0 && errno != EINTR) return fail_here(streams[0].rank, errno);
    return true;
  }

  // Ends the connections, so that the other ranks fail as well.
  bool fail_here(int other, int error) {
    if (stopped.load())
      aborted();
    else
      closed(other, error);
    shut_down();
    return false;
  }

  void abort() {
    stopped.store(true);
    shut_down();
  }

  void shut_down() {
    for (int i = 0; i < ranks; i++)
      if (i != rank) shutdown(descriptors[i], SHUT_RDWR);
  }

  // Copies the socket to a rank, so that its number stays this socket's until `close`. Returns false with errno.
  bool copy(int other, int descriptor) {
    const int on = 1;
    descriptors[other] = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
    return descriptors[other] >= 0 && !setsockopt(descriptors[other], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }

  void close() {
    for (int i = 0; i < ranks; i++)
      if (descriptors[i] >= 0) ::close(descriptors[i]);
    std::free(theirs);
    std::free(this);
  }
};

TcpExchange &own(Exchange &exchange) { return static_cast<TcpExchange &>(exchange); }

constexpr Exchange::Calls CALLS{
    [](Exchange &exchange, const Part &part) { return own(exchange).sum(part); },
    [](Exchange &exchange, char *bytes, size_t size) { return own(exchange).broadcast(bytes, size); },
    [](Exchange &exchange) { own(exchange).abort(); },
    [](Exchange &exchange) { own(exchange).close(); },
};

}  // namespace

}  // namespace plimsoll

using plimsoll::TcpExchange;

// Returns the handle of an exchange over copies of sockets, one for each rank (that of the rank itself is not used), or
// -errno.
EXPORTED int64_t plimsoll_exchange_connect(const int32_t *descriptors, int32_t ranks, int32_t rank, int32_t check) {
  void *memory = std::malloc(sizeof(TcpExchange));
  void *pieces = std::aligned_alloc(64, TcpExchange::floats(ranks) * sizeof(float));
  if (!memory || !pieces) {
    std::free(memory);
    std::free(pieces);
    return -ENOMEM;
  }
  auto *exchange = new (memory) TcpExchange{};
  exchange->calls = &plimsoll::CALLS;
  exchange->ranks = ranks;
  exchange->rank = rank;
  exchange->check = check != 0;
  exchange->theirs = static_cast<float *>(pieces);
  exchange->sums = exchange->theirs + ranks * plimsoll::MOST_FLOATS;
  exchange->mine = exchange->sums + plimsoll::MOST_FLOATS;
  for (int i = 0; i < ranks; i++) exchange->descriptors[i] = -1;
  for (int i = 0; i < ranks; i++)
    if (i != rank && !exchange->copy(i, descriptors[i])) {
      const int error = errno;
      exchange->close();
      return -error;
    }
  return reinterpret_cast<int64_t>(exchange);
}
