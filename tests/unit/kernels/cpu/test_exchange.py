"""Sums and broadcasts between ranks, over shared memory and TCP: exact results, and failures that all ranks see."""

from __future__ import annotations

import math
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from kernel_support.ranks import (
    KINDS,
    Group,
    connections,
    group,
    parts_of,
    same_bits,
    segment,
    sum_of,
    wait_until_asleep,
)
from torch import Tensor

from plimsoll_kernels.cpu.exchange import AnyExchange, Exchange, ExchangeError, abort_segment, rounds_of, segment_bytes
from plimsoll_kernels.cpu.library import library
from plimsoll_kernels.cpu.tcp_exchange import TcpExchange

pytestmark = pytest.mark.skipif(library() is None, reason="the CPU kernels were not built")
KIB = 256
"""Floats in a KiB."""
SIZES = (
    1,
    7,
    3 * KIB,
    64 * KIB - 1,
    64 * KIB,
    64 * KIB + 1,
    128 * KIB,
    128 * KIB + 5,
    192 * KIB,
    1024 * KIB,
    5 * 10**5,
)
REPEATS = 10
CHILD = """
import sys
import torch
from plimsoll_kernels.cpu.exchange import Exchange

with Exchange(int(sys.argv[1]), 3, 2) as exchange:
    exchange.sum(torch.ones(1))
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture(params=[2, 3, 4])
def ranks(request: pytest.FixtureRequest) -> int:
    chosen: int = request.param
    return chosen


@pytest.fixture
def several(kind: str, ranks: int) -> Iterator[Group]:
    with group(kind, ranks) as made:
        yield made


@pytest.fixture
def two(kind: str) -> Iterator[Group]:
    with group(kind, 2) as made:
        yield made


def summed(exchange: AnyExchange, part: Tensor) -> Tensor:
    """Return a rank's result, in a tensor of its own."""
    values = part.clone()
    exchange.sum(values)
    return values


@pytest.mark.parametrize("size", SIZES)
def test_every_rank_gets_the_sum_in_the_order_of_the_ranks(several: Group, ranks: int, size: int) -> None:
    for seed in range(REPEATS):
        parts = parts_of(ranks, size, seed=seed)
        found = several.run(lambda exchange, parts=parts: summed(exchange, parts[exchange.rank]))  # type: ignore[misc]
        assert all(same_bits(each, sum_of(parts)) for each in found)


def test_many_sums_of_mixed_sizes_in_a_row(several: Group, ranks: int) -> None:
    sizes = [random.Random(0).choice(SIZES[:-2]) for _ in range(100)]
    parts = [parts_of(ranks, size, seed=number) for number, size in enumerate(sizes)]

    def work(exchange: AnyExchange) -> bool:
        return all(same_bits(summed(exchange, each[exchange.rank]), sum_of(each)) for each in parts)

    assert all(several.run(work))


def test_a_row_has_the_same_bits_in_any_number_of_rows(several: Group, ranks: int) -> None:
    parts = parts_of(ranks, 300, 1001)
    whole = several.run(lambda exchange: summed(exchange, parts[exchange.rank]))[0]
    for row in (0, 150, 299):
        alone = several.run(lambda exchange, row=row: summed(exchange, parts[exchange.rank][row]))  # type: ignore[misc]
        assert all(same_bits(each, whole[row]) for each in alone)


def test_nans_and_infinities_pass_through(several: Group, ranks: int) -> None:
    for size in (5, 100 * KIB):
        parts = parts_of(ranks, size)
        parts[0][0], parts[1][1], parts[0][2], parts[1][2] = math.nan, math.nan, math.inf, -math.inf
        found = several.run(lambda exchange, parts=parts: summed(exchange, parts[exchange.rank]))  # type: ignore[misc]
        assert all(same_bits(each, found[0]) for each in found)
        assert found[0][:3].isnan().all()
        assert torch.equal(found[0][3:], sum_of(parts)[3:])


def test_negative_zeros_stay(two: Group) -> None:
    found = two.run(lambda exchange: summed(exchange, torch.tensor([-0.0])))
    assert all(math.copysign(1, each.item()) == -1 for each in found)


@pytest.mark.parametrize("size", [0, 1, 4095, 128 * 1024, 1_000_003])
def test_a_broadcast_copies_the_bytes_of_rank_0(several: Group, size: int) -> None:
    content = random.Random(0).randbytes(size)

    def work(exchange: AnyExchange) -> bool:
        buffer = bytearray(content if exchange.rank == 0 else size)
        exchange.broadcast(buffer)
        exchange.sum(torch.ones(100 * KIB))
        return buffer == content

    assert all(several.run(work))


def test_ranks_with_random_delays_lose_no_wake_up(several: Group, ranks: int) -> None:
    """Delays are about as long as a rank spins, so that it often begins to sleep while another arrives."""

    def work(exchange: AnyExchange) -> bool:
        delays = random.Random(exchange.rank)
        right = True
        for number in range(300):
            time.sleep(delays.choice((0, 0, 1e-6, 1e-5, 1e-4)))
            values = torch.full((3 * KIB,), float(exchange.rank + number))
            exchange.sum(values)
            right = right and values.eq(sum(range(ranks)) + ranks * number).all().item() is True
        return right

    assert all(several.run(work))


def test_an_abort_ends_waiting_and_later_calls(two: Group) -> None:
    waiting = two.start(0, lambda exchange: summed(exchange, torch.ones(4)))
    wait_until_asleep()
    two.exchanges[1].abort()
    with pytest.raises(ExchangeError):
        waiting.result(timeout=60)
    for rank in (0, 1):
        with pytest.raises(ExchangeError):
            two.exchanges[rank].sum(torch.ones(100 * KIB))
        with pytest.raises(ExchangeError):
            two.exchanges[rank].broadcast(bytearray(1))


def test_a_rank_aborts_its_own_waiting(two: Group) -> None:
    waiting = two.start(0, lambda exchange: summed(exchange, torch.ones(200 * KIB)))
    wait_until_asleep()
    two.exchanges[0].abort()
    with pytest.raises(ExchangeError, match="aborted"):
        waiting.result(timeout=60)


def test_aborts_amid_sums_end_all_ranks(kind: str) -> None:
    for _ in range(20):
        with group(kind, 3) as made:

            def work(exchange: AnyExchange) -> None:
                while True:
                    exchange.sum(torch.ones(3 * KIB))

            running = [made.start(rank, work) for rank in range(3)]
            made.exchanges[2].abort()
            for each in running:
                with pytest.raises(ExchangeError):
                    each.result(timeout=60)


@pytest.mark.parametrize("size", [1, 100 * KIB])
def test_different_calls_are_named_if_they_are_checked(kind: str, size: int) -> None:
    with group(kind, 3, check=True) as made:
        assert all(each.eq(3).all() for each in made.run(lambda exchange: summed(exchange, torch.ones(5))))
        running = [made.start(rank, lambda exchange: summed(exchange, torch.ones(size))) for rank in (0, 1)]
        running.append(made.start(2, lambda exchange: summed(exchange, torch.ones(size + 1))))
        reasons = [str(each.exception(timeout=60)) for each in running]
    named = [reason for reason in reasons if "differ" in reason]
    assert named
    assert all("rank 2 called sum with" in reason and f"with {4 * size} bytes" in reason for reason in named)
    assert kind == "tcp" or named == reasons


def test_a_sum_and_a_broadcast_differ(kind: str) -> None:
    with group(kind, 2, check=True) as made:
        running = made.start(0, lambda exchange: summed(exchange, torch.ones(2)))
        with pytest.raises(ExchangeError, match="rank 0 called sum with 8 bytes, rank 1 called broadcast with 8"):
            made.exchanges[1].broadcast(bytearray(8))
        assert isinstance(running.exception(timeout=60), ExchangeError)


def test_seconds_of_waiting_are_part_of_all_seconds(two: Group) -> None:
    waiting = two.start(0, lambda exchange: summed(exchange, torch.ones(4)))
    wait_until_asleep()
    two.exchanges[1].sum(torch.ones(4))
    waiting.result(timeout=60)
    seconds, waited = two.exchanges[0].statistics()
    assert seconds > waited > 20e-6
    assert two.exchanges[1].statistics().seconds > 0


def test_other_tensors_and_buffers_are_refused(two: Group) -> None:
    exchange = two.exchanges[0]
    with pytest.raises(ValueError, match=r"contiguous float32 tensor on the CPU; got contiguous torch\.bfloat16"):
        exchange.sum(torch.ones(3, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="got strided"):
        exchange.sum(torch.ones(4, 4)[:, :2])
    with pytest.raises(TypeError):
        exchange.broadcast(memoryview(b"read-only"))


def test_a_closed_exchange_refuses_calls_and_ignores_aborts(two: Group) -> None:
    exchange = two.exchanges[1]
    exchange.close()
    exchange.close()
    exchange.abort()
    for call in (lambda: exchange.sum(torch.ones(1)), exchange.statistics):
        with pytest.raises(ExchangeError, match="the exchange of rank 1 is closed"):
            call()


@pytest.mark.parametrize(("ranks", "rank"), [(1, 0), (17, 0), (2, 2), (2, -1)])
def test_impossible_ranks_are_refused(ranks: int, rank: int) -> None:
    with segment(2) as descriptor, pytest.raises(ValueError, match=r"ranks"):
        Exchange(descriptor, ranks, rank)
    with pytest.raises(ValueError, match=r"ranks"):
        TcpExchange({}, ranks, rank)


def test_a_segment_that_is_too_small_or_closed_is_refused() -> None:
    with segment(2) as descriptor:
        needed = segment_bytes(3)
        with pytest.raises(ValueError, match=f"3 ranks needs {needed} bytes; this one has {segment_bytes(2)}"):
            Exchange(descriptor, 3, 0)
    with pytest.raises(ValueError, match="no open file"):
        abort_segment(descriptor, 2)


def test_a_segment_that_cannot_be_mapped_is_refused() -> None:
    with segment(2) as descriptor:
        reader = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY)
        try:
            with pytest.raises(ValueError, match="cannot map the segment of the exchange: Permission denied"):
                Exchange(reader, 2, 0)
            with pytest.raises(ValueError, match="Permission denied"):
                abort_segment(reader, 2)
        finally:
            os.close(reader)


def test_a_rank_that_opens_its_segment_again_continues() -> None:
    with segment(2) as descriptor, Exchange(descriptor, 2, 1) as other:
        for _ in range(3):
            with Exchange(descriptor, 2, 0) as exchange, group("memory", 2) as threads:
                theirs = threads.start(0, lambda _: summed(other, torch.ones(2)))
                assert torch.equal(summed(exchange, torch.ones(2)), torch.full((2,), 2.0))
                theirs.result(timeout=60)


def test_a_killed_rank_leaves_the_others_waiting_until_they_are_aborted() -> None:
    with segment(3) as descriptor, Exchange(descriptor, 3, 0) as exchange, Exchange(descriptor, 3, 1) as other:
        command = [sys.executable, "-c", CHILD, str(descriptor)]
        pipe = subprocess.PIPE
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        with (
            subprocess.Popen(command, pass_fds=[descriptor], stdin=pipe, stdout=pipe, env=environment) as child,
            group("memory", 2) as threads,
        ):
            first = threads.start(0, lambda _: summed(exchange, torch.ones(1)))
            assert summed(other, torch.ones(1)).item() == 3
            first.result(timeout=60)
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            waiting = [
                threads.start(0, lambda _: summed(exchange, torch.ones(1))),
                threads.start(1, lambda _: summed(other, torch.ones(1))),
            ]
            wait_until_asleep()
            child.kill()
            child.wait()
            assert not any(each.done() for each in waiting)
            abort_segment(descriptor, 3)
            for each in waiting:
                with pytest.raises(ExchangeError, match="aborted"):
                    each.result(timeout=60)


def test_a_rank_that_sends_slowly_adds_its_own_part() -> None:
    """All pieces of the other rank arrive before this rank has sent its first one."""
    small = 32 * 1024
    parts = parts_of(2, 256 * KIB + 5)
    with connections(2) as sockets, group("tcp", 2) as threads:
        here, there = sockets[0][1], sockets[1][0]
        here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, small)
        there.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, small)
        with TcpExchange(sockets[0], 2, 0) as exchange:
            found = threads.start(0, lambda _: summed(exchange, parts[0]))
            there.setblocking(True)
            there.sendall(parts[1].numpy().tobytes())
            wait_until_asleep()
            received = bytearray()
            while len(received) < parts[0].nbytes:
                received += there.recv(1 << 20)
            assert same_bits(found.result(timeout=60), sum_of(parts))
        assert received == parts[0].numpy().tobytes()


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_closed_peer_is_named_and_ends_the_group(ranks: int) -> None:
    with connections(ranks) as sockets, group("tcp", ranks) as threads:
        exchanges = [TcpExchange(sockets[rank], ranks, rank) for rank in range(ranks - 1)]
        waiting = [threads.start(each.rank, lambda _, each=each: summed(each, torch.ones(4))) for each in exchanges]  # type: ignore[misc]
        wait_until_asleep()
        for each in sockets[ranks - 1].values():
            each.close()
        reasons = [str(each.exception(timeout=60)) for each in waiting]
        assert any(f"the connection to rank {ranks - 1} is closed: " in reason for reason in reasons)
        assert all("is closed" in reason for reason in reasons)
        with pytest.raises(ExchangeError, match="is closed"):
            exchanges[0].sum(torch.ones(4))
        for exchange in exchanges:
            exchange.close()


def test_sockets_may_be_closed_when_they_are_connected() -> None:
    with connections(2) as sockets, group("tcp", 2) as threads:
        exchanges = [TcpExchange(sockets[rank], 2, rank) for rank in (0, 1)]
        for each in (sockets[0][1], sockets[1][0]):
            each.close()
        found = threads.run(lambda exchange: summed(exchanges[exchange.rank], torch.ones(2)))
        assert all(each.eq(2).all() for each in found)
        exchanges[1].close()
        with pytest.raises(ExchangeError, match="the connection to rank 1 is closed"):
            exchanges[0].sum(torch.ones(2))
        exchanges[0].close()


@pytest.mark.parametrize("size", [1, 1000, 100_003])
def test_sixteen_ranks(kind: str, size: int) -> None:
    parts = parts_of(16, size)
    with group(kind, 16, check=True) as made:
        found = made.run(lambda exchange: [summed(exchange, parts[exchange.rank]) for _ in range(5)])
    assert all(same_bits(each, sum_of(parts)) for several in found for each in several)


def test_sockets_that_are_missing_blocking_or_closed_are_refused() -> None:
    with connections(2) as sockets:
        with pytest.raises(ValueError, match=r"rank 0 needs sockets to the ranks \[1, 2\]; got \[1\]"):
            TcpExchange(sockets[0], 3, 0)
        sockets[0][1].setblocking(True)
        with pytest.raises(ValueError, match=r"to the ranks \[1\] are blocking"):
            TcpExchange(sockets[0], 2, 0)
        sockets[1][0].close()
        with pytest.raises(ValueError, match="cannot use the sockets of the exchange: Bad file descriptor"):
            TcpExchange(sockets[1], 2, 1)


def test_the_rounds_of_a_segment_name_the_rank_that_is_late() -> None:
    with segment(2) as descriptor, Exchange(descriptor, 2, 0) as first, ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(first.sum, torch.ones(4))
        while rounds_of(descriptor, 2) != [1, 0]:
            assert not waiting.done()
        with Exchange(descriptor, 2, 1) as second:
            second.sum(torch.ones(4))
            waiting.result()
        assert rounds_of(descriptor, 2) == [1, 1]
    with pytest.raises(ValueError, match="no open file"):
        rounds_of(descriptor, 2)
