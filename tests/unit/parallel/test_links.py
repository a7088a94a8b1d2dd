"""Values pass from stage to stage in order, whatever their size, and a step that differs is named."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from plimsoll_runtime.errors import EngineDeadError
from plimsoll_runtime.parallel.collectives import CollectivesDifferError, TorchCollectives
from plimsoll_runtime.parallel.layout import Layout
from plimsoll_runtime.parallel.links import NoLink, SocketLink, TorchLink

LARGE = 4096
"""Rows and columns of values that no socket's buffers hold: 64 MiB."""
SECONDS = 30.0


class Pair:
    """Two linked stages. `ends`: their sockets."""

    def __init__(self) -> None:
        self.ends = socket.socketpair()
        self.first, self.second = SocketLink(None, self.ends[0]), SocketLink(self.ends[1], None)


@pytest.fixture
def pair() -> Iterator[Pair]:
    found = Pair()
    yield found
    for end in found.ends:
        end.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_values_arrive_in_order_with_the_same_bits(pair: Pair, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    shapes = [(1, 1), (7, 3), (0, 5), (300, 129), (1, 7000)]
    sent = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    for step, values in enumerate(sent, 1):
        pair.first.send(step, values)
    for step, values in enumerate(sent, 1):
        rows, columns = values.shape
        found = pair.second.receive(step, rows, columns, dtype)
        assert found.dtype == dtype
        assert torch.equal(found, values)


def test_values_that_are_not_contiguous(pair: Pair) -> None:
    values = torch.arange(12.0).view(3, 4)
    pair.first.send(1, values.t())
    pair.first.send(2, values[:, 1:3])
    assert torch.equal(pair.second.receive(1, 4, 3, torch.float32), values.t())
    assert torch.equal(pair.second.receive(2, 3, 2, torch.float32), values[:, 1:3])


def test_a_stage_does_not_wait_for_a_later_one(pair: Pair) -> None:
    """The values of four steps are larger than the buffers, and nothing receives them until all are sent."""
    values = torch.arange(float(LARGE * LARGE)).view(LARGE, LARGE)

    def send() -> None:
        for step in range(4):
            pair.first.send(step, values + step)

    sending = threading.Thread(target=send, daemon=True)
    sending.start()
    sending.join(SECONDS)
    assert not sending.is_alive()
    for step in range(4):
        assert torch.equal(pair.second.receive(step, LARGE, LARGE, torch.float32), values + step)


@pytest.mark.parametrize(
    ("step", "rows", "columns", "dtype"),
    [(4, 2, 3, torch.float32), (6, 2, 3, torch.float32), (5, 3, 3, torch.float32), (5, 2, 3, torch.bfloat16)],
    ids=["earlier-step", "later-step", "rows", "dtype"],
)
def test_another_step_or_size_is_named(pair: Pair, step: int, rows: int, columns: int, dtype: torch.dtype) -> None:
    pair.first.send(5, torch.ones(2, 3))
    size = rows * columns * dtype.itemsize
    message = f"waits for {size} bytes of its step {step}, and the stage before has sent 24 bytes of its step 5"
    with pytest.raises(CollectivesDifferError, match=message):
        pair.second.receive(step, rows, columns, dtype)


@pytest.mark.parametrize("sent", [b"", b"\0" * 5, struct.pack("!QQ", 1, 24), struct.pack("!QQ", 1, 24) + b"\0" * 23])
def test_an_end_that_closes_while_a_stage_waits(pair: Pair, sent: bytes) -> None:
    pair.ends[0].sendall(sent)
    pair.ends[0].close()
    with pytest.raises(EngineDeadError, match="the connection to the stage before has ended"):
        pair.second.receive(1, 2, 3, torch.float32)


def test_values_that_were_sent_before_an_end_closed_arrive(pair: Pair) -> None:
    pair.first.send(1, torch.ones(2, 3))
    assert pair.second.receive(1, 2, 3, torch.float32).sum() == 6
    pair.first.send(2, torch.ones(2, 3))
    pair.ends[1].settimeout(SECONDS)
    pair.ends[1].recv(1, socket.MSG_PEEK)
    pair.ends[0].shutdown(socket.SHUT_WR)
    assert pair.second.receive(2, 2, 3, torch.float32).sum() == 6
    with pytest.raises(EngineDeadError):
        pair.second.receive(3, 2, 3, torch.float32)


def test_a_stage_that_has_ended_is_noticed_by_the_one_before(pair: Pair) -> None:
    pair.ends[1].close()
    due, message = time.monotonic() + SECONDS, ""
    while not message and time.monotonic() < due:
        try:
            pair.first.send(1, torch.ones(2, 3))
        except EngineDeadError as error:
            message = str(error)
    assert message.startswith("the connection to the stage after has ended")


def test_a_middle_stage_receives_and_sends() -> None:
    one, two = socket.socketpair(), socket.socketpair()
    first, middle, last = SocketLink(None, one[0]), SocketLink(one[1], two[0]), SocketLink(two[1], None)
    for step in range(5):
        first.send(step, torch.full((2, 2), float(step)))
    for step in range(5):
        middle.send(step, middle.receive(step, 2, 2, torch.float32) + 100)
    assert [last.receive(step, 2, 2, torch.float32)[1, 1] for step in range(5)] == [100, 101, 102, 103, 104]
    for end in (*one, *two):
        end.close()


def test_a_pipeline_of_one_stage_has_no_link() -> None:
    with pytest.raises(ValueError, match="no stage before"):
        NoLink().receive(1, 1, 1, torch.float32)
    with pytest.raises(ValueError, match="no stage after"):
        NoLink().send(1, torch.ones(1, 1))


# Over gloo

STEPS = 100


def _joined(rank: int, layout: Layout, meeting: str, *, check: bool) -> tuple[TorchCollectives, TorchLink]:
    group = TorchCollectives("gloo", meeting, rank, layout.size, check=check)
    return group.among(layout), TorchLink(layout, rank, torch.device("cpu"), check=check)


def _values(step: int, shard: int) -> Tensor:
    return torch.arange(12.0).view(3, 4) + 1000 * step + 100 * shard


def _pass(rank: int, layout: Layout, meeting: str, check: bool, results: Queue[Any], done: Event) -> None:
    """Send the values of 100 steps through all stages; each adds one, after a sum over its ranks."""
    stage, link = _joined(rank, layout, meeting, check=check)
    wrong, held = 0, 0
    for step in range(STEPS):
        values = _values(step, layout.shard(rank))
        if layout.before(rank) is not None:
            found = link.receive(step, 3, 4, torch.float32)
            wrong += not torch.equal(found, values + layout.stage(rank))
            values = found
        total = torch.full((2,), 1.0 + layout.stage(rank))
        stage.add_up(total)
        wrong += total.tolist() != [(1.0 + layout.stage(rank)) * layout.tensor] * 2
        if layout.after(rank) is not None:
            link.send(step, values + 1)
            held = max(held, len(link._sent))
    # All other ranks have received everything when they have sent this.
    dist.barrier()
    if layout.after(rank) is not None:
        link.send(STEPS, torch.zeros(1, 1))
        held = len(link._sent)
    if layout.before(rank) is not None:
        link.receive(STEPS, 1, 1, torch.float32)
    results.put((rank, wrong, held))
    done.wait(120)
    dist.destroy_process_group()


def _differ(rank: int, layout: Layout, meeting: str, check: bool, results: Queue[Any], done: Event) -> None:
    """Receive a step with other rows than it was sent with."""
    _, link = _joined(rank, layout, meeting, check=check)
    if rank == 1:
        link.send(7, torch.zeros(2, 3))
        results.put("")
    else:
        try:
            link.receive(8, 4, 3, torch.float32)
        except CollectivesDifferError as error:
            results.put(str(error))
    done.wait(120)
    dist.destroy_process_group()


def over_gloo(run: Any, layout: Layout, meeting: Path, *, check: bool) -> list[Any]:
    """Return the results of a process for each rank."""
    spawned = get_context("spawn")
    results: Queue[Any] = spawned.Queue()
    done = spawned.Event()
    arguments = (layout, f"file://{meeting}", check, results, done)
    ranks = [spawned.Process(target=run, args=(rank, *arguments)) for rank in range(layout.size)]
    for process in ranks:
        process.start()
    try:
        found = [results.get(timeout=120) for _ in ranks]
        done.set()
        for process in ranks:
            process.join(60)
            assert process.exitcode == 0
    finally:
        for process in ranks:
            process.kill()
    return found


@pytest.mark.long
@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("layout", [Layout(1, 3), Layout(2, 2)], ids=str)
def test_values_pass_over_gloo(tmp_path: Path, layout: Layout, check: bool) -> None:
    found = over_gloo(_pass, layout, tmp_path / "meeting", check=check)
    assert {rank: wrong for rank, wrong, _ in found} == dict.fromkeys(range(layout.size), 0)
    held = {rank: held for rank, _, held in found}
    assert max(held.values()) <= 2 * layout.stages, "values that have been sent are kept"


@pytest.mark.long
def test_steps_that_differ_over_gloo_are_named(tmp_path: Path) -> None:
    found = over_gloo(_differ, Layout(1, 2), tmp_path / "meeting", check=True)
    assert sorted(found) == [
        "",
        "the stages' steps differ: this one waits for 12 values of its step 8, and the stage before has sent 6 values "
        "of its step 7",
    ]
