"""Connections between all ranks of a group on several machines, for the exchange of the CPU kernels."""

from __future__ import annotations

import secrets
import socket
import time
from contextlib import ExitStack

import msgspec

from plimsoll_kernels.cpu.tcp_exchange import TcpExchange
from plimsoll_runtime.errors import EngineDeadError
from plimsoll_runtime.parallel.collectives import Exchanging, LocalCollectives

SECONDS = 30.0
"""Time for all ranks to connect to each other."""
HELLO_SECONDS = 2.0
"""Time for a rank to say which one it is; others wait for it."""
NONCE_BYTES = 16
_HELLO_BYTES = NONCE_BYTES + 4


class Address(msgspec.Struct, frozen=True, array_like=True):
    """The address at which a rank listens. `nonce` proves to it that a connection comes from its group."""

    host: str
    port: int
    nonce: bytes


def connected(group: Exchanging, host: str, rank: int, ranks: int, *, check: bool) -> LocalCollectives:
    """Connect this rank to all others, and return collectives over these connections.

    `group`: collectives over which the ranks tell each other their addresses. `host`: this rank's own address. Raises
    EngineDeadError if a rank cannot be reached within SECONDS.
    """
    due = time.monotonic() + SECONDS
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server((host, 0), backlog=ranks, family=_family(host)))
        own = Address(host, listener.getsockname()[1], secrets.token_bytes(NONCE_BYTES))
        addresses = [msgspec.msgpack.decode(each, type=Address) for each in group.gathered(msgspec.msgpack.encode(own))]
        peers: dict[int, socket.socket] = {}
        try:
            for other in range(rank):
                peers[other] = stack.enter_context(_connection(addresses[other], rank, due))
            while len(peers) < ranks - 1:
                _accept(listener, own.nonce, peers, stack, range(rank + 1, ranks), due)
        except OSError as error:
            missing = [str(other) for other in range(ranks) if other != rank and other not in peers]
            raise EngineDeadError(
                f"rank {rank} cannot connect to rank {' and '.join(missing)} within {SECONDS:g} s: {error}"
            ) from error
        for peer in peers.values():
            peer.setblocking(False)
        # The exchange keeps copies of the sockets.
        return LocalCollectives(TcpExchange(peers, ranks, rank, check=check))


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _connection(address: Address, rank: int, due: float) -> socket.socket:
    """Connect to a rank and say which one this is."""
    left = max(0.1, due - time.monotonic())
    made = socket.create_connection((address.host, address.port), timeout=left)
    made.sendall(address.nonce + rank.to_bytes(4, "little"))
    return made


def _accept(
    listener: socket.socket,
    nonce: bytes,
    peers: dict[int, socket.socket],
    stack: ExitStack,
    expected: range,
    due: float,
) -> None:
    """Accept a connection. One that does not come from a rank of this group is closed."""
    listener.settimeout(max(0.1, due - time.monotonic()))
    made, _ = listener.accept()
    made.settimeout(HELLO_SECONDS)
    hello = b""
    try:
        while len(hello) < _HELLO_BYTES and (piece := made.recv(_HELLO_BYTES - len(hello))):
            hello += piece
    except OSError:
        made.close()
        return
    number = int.from_bytes(hello[NONCE_BYTES:], "little")
    if not secrets.compare_digest(hello[:NONCE_BYTES], nonce) or number not in expected or number in peers:
        made.close()
        return
    peers[number] = stack.enter_context(made)
