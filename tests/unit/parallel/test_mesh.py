"""Ranks that connect to each other over loopback exchange sums and values, and strangers disturb nobody."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import msgspec
import pytest
import torch
from parallel_support.ranks import ThreadCollectives, on_ranks

from plimsoll_kernels.cpu.exchange import Exchange, segment_bytes
from plimsoll_kernels.cpu.library import library
from plimsoll_runtime.errors import EngineDeadError
from plimsoll_runtime.parallel import mesh
from plimsoll_runtime.parallel.collectives import LocalCollectives
from plimsoll_runtime.parallel.layout import Layout
from plimsoll_runtime.parallel.member import CountedCollectives
from plimsoll_runtime.parallel.mesh import Connected, connected

pytestmark = pytest.mark.skipif(library() is None, reason="the CPU kernels were not built")

HOST = "127.0.0.1"
WIDTH = 4


@contextmanager
def joined(
    group: ThreadCollectives, rank: int, layout: Layout, in_memory: LocalCollectives | None = None
) -> Iterator[Connected]:
    found = connected(group, HOST, layout, rank, in_memory=in_memory, check=True)
    try:
        yield found
    finally:
        group.gathered(b"")  # no rank closes its connections while another still exchanges
        if found.stage is not None:
            found.stage.close()
        if found.link is not None:
            for end in (found.link._before, found.link._after):
                if end is not None:
                    end.close()


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_ranks_get_the_sum_of_all(ranks: int) -> None:
    def run(group: ThreadCollectives, rank: int) -> tuple[list[float], list[bytes]]:
        with joined(group, rank, Layout(ranks)) as found:
            assert found.stage is not None
            assert found.link is None
            total = CountedCollectives(found.stage).sum(torch.full((4,), 2.0**rank)).tolist()
            return total, found.stage.gathered(bytes([rank] * rank))

    for total, gathered in on_ranks(ranks, run):
        assert total == [2.0**ranks - 1] * 4
        assert gathered == [bytes([rank] * rank) for rank in range(ranks)]


def value(step: int, stage: int, shard: int) -> int:
    """Return a value that has passed a stage: digits for the step, and for the shard of each stage so far."""
    return int(f"{step}{str(shard) * (stage + 1)}")


def of_layout(layout: Layout, in_memory: Collection[int] = ()) -> None:
    """Pass sums of each stage through all stages, in each of three steps.

    `in_memory`: the stages whose ranks share memory.
    """
    segments = {stage: os.memfd_create("test-exchange") for stage in in_memory}
    for segment in segments.values():
        os.ftruncate(segment, segment_bytes(layout.tensor))

    def run(group: ThreadCollectives, rank: int) -> list[float]:
        stage, shard = layout.stage(rank), layout.shard(rank)
        memory = None
        if stage in segments:
            memory = LocalCollectives(Exchange(segments[stage], layout.tensor, shard, check=True))
        with joined(group, rank, layout, memory) as found:
            assert (found.stage is None) == (layout.tensor == 1)
            assert found.stage is memory or stage not in segments
            assert found.link is not None
            counted, results = CountedCollectives(found.stage, link=found.link), []
            for step in range(3):
                counted.begin()
                values = torch.full((2, WIDTH), float(step))
                if layout.before(rank) is not None:
                    values = counted.receive(2, WIDTH, torch.float32, torch.device("cpu"))
                # Each shard adds its own number, so a link between other shards or stages shows.
                values = values * 10 + shard
                if found.stage is not None:
                    total = counted.sum(values.clone())
                    assert torch.equal(
                        total,
                        torch.full_like(total, float(sum(value(step, stage, each) for each in range(layout.tensor)))),
                    )
                if layout.after(rank) is not None:
                    counted.send(values)
                results.append(values[1, WIDTH - 1].item())
            return results

    found = on_ranks(layout.size, run)
    for segment in segments.values():
        os.close(segment)
    for rank, results in enumerate(found):
        assert results == [value(step, layout.stage(rank), layout.shard(rank)) for step in range(3)]


@pytest.mark.parametrize("layout", [Layout(1, 2), Layout(1, 4), Layout(2, 2), Layout(3, 2), Layout(2, 3)], ids=str)
def test_values_pass_through_the_stages(layout: Layout) -> None:
    of_layout(layout)


@pytest.mark.parametrize("in_memory", [{0}, {1}, {0, 2}, {0, 1, 2}], ids=str)
def test_some_stages_share_memory_and_others_do_not(in_memory: Collection[int]) -> None:
    """As three ranks on each of two machines: the middle stage's ranks are on both."""
    of_layout(Layout(2, 3), in_memory)


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
@pytest.mark.parametrize("layout", [Layout(2), Layout(1, 2)], ids=["tensor", "stages"])
def test_a_stranger_is_ignored(sent: bytes, layout: Layout) -> None:
    def run(group: ThreadCollectives, rank: int) -> list[float]:
        if rank == 1:
            group.__class__ = Strange
            group.sent = sent  # type: ignore[attr-defined]
        with joined(group, rank, layout) as found:
            if found.stage is not None:
                return CountedCollectives(found.stage).sum(torch.ones(3)).tolist()
            assert found.link is not None
            if rank == 1:
                found.link.send(0, torch.full((1, 3), 2.0))
                return [2.0] * 3
            return found.link.receive(0, 1, 3, torch.float32)[0].tolist()

    assert on_ranks(2, run) == [[2.0] * 3] * 2


@pytest.mark.parametrize("layout", [Layout(2), Layout(1, 2)], ids=["tensor", "stages"])
def test_a_rank_that_does_not_connect_is_named(monkeypatch: pytest.MonkeyPatch, layout: Layout) -> None:
    monkeypatch.setattr(mesh, "SECONDS", 0.2)

    def run(group: ThreadCollectives, rank: int) -> str:
        if rank == 1:
            group.gathered(msgspec.msgpack.encode(mesh.Address("127.0.0.1", 1, b"")))
            return ""
        with pytest.raises(EngineDeadError) as error:
            connected(group, HOST, layout, rank, in_memory=None, check=False)
        return str(error.value)

    message, _ = on_ranks(2, run)
    assert message.startswith("rank 0 cannot connect to rank 1 within 0.2 s")


def test_a_rank_connects_only_to_its_stage_and_to_the_stages_next_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout(2, 4)
    asked: dict[int, set[int]] = {}
    real = mesh._peers

    def peers(group: object, host: str, rank: int, others: Collection[int], stack: object) -> object:
        asked[rank] = set(others)
        return real(group, host, rank, others, stack)  # type: ignore[arg-type]

    monkeypatch.setattr(mesh, "_peers", peers)
    of_layout(layout, {0})
    for rank in range(layout.size):
        near = {layout.before(rank), layout.after(rank)} - {None}
        own = set() if layout.stage(rank) == 0 else set(layout.together(rank)) - {rank}
        assert asked[rank] == own | near
