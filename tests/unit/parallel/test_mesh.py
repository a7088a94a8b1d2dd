"""Ranks that connect to each other over loopback exchange sums, and strangers disturb nobody."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
import torch
from parallel_support.ranks import ThreadCollectives, on_ranks

from plimsoll_kernels.cpu.library import library
from plimsoll_runtime.errors import EngineDeadError
from plimsoll_runtime.parallel import mesh
from plimsoll_runtime.parallel.collectives import LocalCollectives
from plimsoll_runtime.parallel.member import CountedCollectives
from plimsoll_runtime.parallel.mesh import connected

pytestmark = pytest.mark.skipif(library() is None, reason="the CPU kernels were not built")


@contextmanager
def joined(group: ThreadCollectives, rank: int, ranks: int) -> Iterator[LocalCollectives]:
    found = connected(group, "127.0.0.1", rank, ranks, check=True)
    try:
        yield found
    finally:
        group.gathered(b"")  # no rank closes its connections while another still exchanges
        found.close()


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_ranks_get_the_sum_of_all(ranks: int) -> None:
    def run(group: ThreadCollectives, rank: int) -> tuple[list[float], list[bytes]]:
        with joined(group, rank, ranks) as collectives:
            return CountedCollectives(collectives).sum(torch.full((4,), 2.0**rank)).tolist(), collectives.gathered(
                bytes([rank] * rank)
            )

    for total, gathered in on_ranks(ranks, run):
        assert total == [2.0**ranks - 1] * 4
        assert gathered == [bytes([rank] * rank) for rank in range(ranks)]


class Strange(ThreadCollectives):
    """Collectives of rank 1 that first let a stranger connect to rank 0."""

    sent: bytes = b""

    def gathered(self, data: bytes) -> list[bytes]:
        found = super().gathered(data)
        if self.sent:
            address = msgspec.msgpack.decode(found[0], type=mesh.Address)
            with socket.create_connection((address.host, address.port)) as stranger:
                stranger.sendall(self.sent)
            self.sent = b""
        return found


@pytest.mark.parametrize("sent", [b"x", b"GET / HTTP/1.1\r\n\r\n", b"\0" * 20, b"\xff" * 4096])
def test_a_stranger_is_ignored(sent: bytes) -> None:
    def run(group: ThreadCollectives, rank: int) -> list[float]:
        if rank == 1:
            group.__class__ = Strange
            group.sent = sent  # type: ignore[attr-defined]
        with joined(group, rank, 2) as collectives:
            return CountedCollectives(collectives).sum(torch.ones(3)).tolist()

    assert on_ranks(2, run) == [[2.0] * 3] * 2


def test_a_rank_that_does_not_connect_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh, "SECONDS", 0.2)

    def run(group: ThreadCollectives, rank: int) -> str:
        if rank == 1:
            group.gathered(msgspec.msgpack.encode(mesh.Address("127.0.0.1", 1, b"")))
            return ""
        with pytest.raises(EngineDeadError) as error:
            connected(group, "127.0.0.1", rank, 2, check=False)
        return str(error.value)

    message, _ = on_ranks(2, run)
    assert message.startswith("rank 0 cannot connect to rank 1 within 0.2 s")
