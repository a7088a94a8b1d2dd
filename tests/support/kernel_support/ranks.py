"""Groups of ranks that exchange: threads of the test, because a call releases Python's lock."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import reduce
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from torch import Tensor

from plimsoll_kernels.cpu.exchange import AnyExchange, Exchange, segment_bytes
from plimsoll_kernels.cpu.tcp_exchange import TcpExchange

Result = TypeVar("Result")
KINDS = ("memory", "tcp")
FUTEX, POLL, SHARED_WAIT = "202", "7", "0x0"
TRIES = 10_000


@contextmanager
def segment(ranks: int) -> Iterator[int]:
    """Yield the descriptor of a new segment of shared memory."""
    descriptor = os.memfd_create("exchange")
    try:
        os.ftruncate(descriptor, segment_bytes(ranks))
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def connections(ranks: int) -> Iterator[list[dict[int, socket.socket]]]:
    """Yield non-blocking sockets over loopback, for each rank those to the others by rank."""
    made: list[dict[int, socket.socket]] = [{} for _ in range(ranks)]
    with ExitStack() as stack:
        for one in range(ranks):
            for other in range(one):
                with socket.create_server(("127.0.0.1", 0)) as server:
                    made[one][other] = stack.enter_context(socket.create_connection(server.getsockname()))
                    made[other][one] = stack.enter_context(server.accept()[0])
                for each in (made[one][other], made[other][one]):
                    each.setblocking(False)
        yield made


class Group:
    """The exchanges of all ranks, and a thread for each rank."""

    def __init__(self, exchanges: Sequence[AnyExchange], threads: ThreadPoolExecutor) -> None:
        self.exchanges = exchanges
        self._threads = threads

    def start(self, rank: int, work: Callable[[AnyExchange], Result]) -> Future[Result]:
        """Start work in a thread, with the exchange of a rank."""
        return self._threads.submit(work, self.exchanges[rank])

    def run(self, work: Callable[[AnyExchange], Result]) -> list[Result]:
        """Return the results of work of all ranks."""
        started = [self.start(rank, work) for rank in range(len(self.exchanges))]
        return [each.result() for each in started]


@contextmanager
def group(kind: str, ranks: int, *, check: bool = False) -> Iterator[Group]:
    """Yield a group over "memory" or "tcp". At the end it is aborted, so that no thread of a failed test waits."""
    with ExitStack() as stack:
        exchanges: list[AnyExchange]
        if kind == "memory":
            descriptor = stack.enter_context(segment(ranks))
            exchanges = [Exchange(descriptor, ranks, rank, check=check) for rank in range(ranks)]
        else:
            sockets = stack.enter_context(connections(ranks))
            exchanges = [TcpExchange(sockets[rank], ranks, rank, check=check) for rank in range(ranks)]
        for each in exchanges:
            stack.enter_context(each)
        threads = stack.enter_context(ThreadPoolExecutor(ranks))
        try:
            yield Group(exchanges, threads)
        finally:
            for each in exchanges:
                each.abort()


def parts_of(ranks: int, *shape: int, seed: int = 0) -> list[Tensor]:
    """Return a part of each rank."""
    numbers = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=numbers) for _ in range(ranks)]


def sum_of(parts: Sequence[Tensor]) -> Tensor:
    """Return the sum of parts, added in the order of the ranks."""
    return reduce(torch.add, parts)


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether two float32 tensors have the same bits."""
    return torch.equal(one.view(torch.int32), other.view(torch.int32))


def wait_until_asleep() -> None:
    """Return when a thread of this process sleeps in an exchange. Skip the test if the system does not show that."""
    for _ in range(TRIES):
        for task in Path("/proc/self/task").iterdir():
            try:
                call = (task / "syscall").read_text().split()
            except PermissionError as error:
                pytest.skip(f"this machine lets no process look at its system calls: {error}")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if call[0] == POLL or (call[0] == FUTEX and call[2] == SHARED_WAIT):
                return
        time.sleep(0.001)
    raise AssertionError("no rank sleeps")
