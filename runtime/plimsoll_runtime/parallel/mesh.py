"""Connections between all ranks of a group on several machines, for the exchange of the CPU kernels."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass

import msgspec

from plimsoll_kernels.cpu.tcp_exchange import TcpExchange
from plimsoll_runtime.errors import EngineDeadError
from plimsoll_runtime.parallel.collectives import Exchanging, LocalCollectives
from plimsoll_runtime.parallel.layout import Layout
from plimsoll_runtime.parallel.links import SocketLink

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


@dataclass(frozen=True, slots=True)
class Connected:
    """A rank's exchange with its stage, and its link to the stages next to it; each is None if there are no others."""

    stage: LocalCollectives | None
    link: SocketLink | None


def connected(
    group: Exchanging, host: str, layout: Layout, rank: int, *, in_memory: LocalCollectives | None, check: bool
) -> Connected:
    """Connect this rank to the others of its stage and to the stages next to it. All ranks of the group call this.

    `group`: collectives over which all ranks tell each other their addresses. `host`: this rank's own address.
    `in_memory`: the exchange of the stage, if its ranks share memory and need no connections. Raises EngineDeadError if
    a rank cannot be reached within SECONDS.
    """
    together = layout.together(rank) if in_memory is None else range(rank, rank + 1)
    before, after = layout.before(rank), layout.after(rank)
    with ExitStack() as stack:
        others = [other for other in (*together, before, after) if other not in (rank, None)]
        peers = _peers(group, host, rank, others, stack)
        stage, link = in_memory, None
        if len(together) > 1:
            mesh = {other - together.start: peers[other] for other in together if other != rank}
            for peer in mesh.values():
                peer.setblocking(False)
            # The exchange keeps copies of the sockets.
            stage = LocalCollectives(TcpExchange(mesh, len(together), rank - together.start, check=check))
        if layout.stages > 1:
            ends = [None if other is None else peers[other].dup() for other in (before, after)]
            for end in ends:
                if end is not None:
                    end.settimeout(None)
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = SocketLink(*ends)
        return Connected(stage, link)


def _peers(
    group: Exchanging, host: str, rank: int, others: Collection[int], stack: ExitStack
) -> dict[int, socket.socket]:
    """Return connections to other ranks, by rank, which `stack` closes. All ranks of the group must call this."""
    due = time.monotonic() + SECONDS
    peers: dict[int, socket.socket] = {}
    with socket.create_server((host, 0), backlog=max(1, len(others)), family=_family(host)) as listener:
        own = Address(host, listener.getsockname()[1], secrets.token_bytes(NONCE_BYTES))
        addresses = [msgspec.msgpack.decode(each, type=Address) for each in group.gathered(msgspec.msgpack.encode(own))]
        try:
            for other in sorted(others):
                if other < rank:
                    peers[other] = stack.enter_context(_connection(addresses[other], rank, due))
            while len(peers) < len(others):
                _accept(listener, own.nonce, peers, stack, [other for other in others if other > rank], due)
        except OSError as error:
            missing = [str(other) for other in others if other not in peers]
            raise EngineDeadError(
                f"rank {rank} cannot connect to rank {' and '.join(missing)} within {SECONDS:g} s: {error}"
            ) from error
    return peers


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
    expected: Collection[int],
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
