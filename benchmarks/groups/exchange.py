"""`python -m groups.exchange`: sums over two ranks, by Plimsoll's exchange (shared memory, TCP over loopback) and gloo.

Each rank is a process with one thread, on cores that the system chooses. The systems take turns in each round, so that
other load of the machine affects all of them. Times are of one call of rank 0 from Python.
"""

from __future__ import annotations

import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

import question
from options import Options
from plimsoll_kernels.cpu.exchange import Exchange, segment_bytes
from plimsoll_kernels.cpu.tcp_exchange import TcpExchange
from tables import Sheet

RANKS, CALLS, BEFORE = 2, 1000, 50
SIZES = (3, 64, 192, 1024)
"""KiB."""
SYSTEMS = ("memory", "tcp", "gloo")
GOALS = {"memory": (3, 9, 28, 130), "tcp": (6, 24, 60, 600)}
"""Microseconds of each size on an AMD EPYC, medians."""


class Place(NamedTuple):
    """How ranks find each other: the segment, the socket to the other rank, and gloo's file."""

    descriptor: int
    other: socket.socket
    file: Path


def measure(chosen: Options) -> dict[str, Any]:
    """Return percentiles in microseconds of each size and system over all calls, and the ratios gloo over Plimsoll:
    medians over rounds of the ratios of medians.
    """
    calls = max(20, round(CALLS * chosen.scale))
    rounds = _ranks(chosen.rounds, calls)
    return {"ranks": RANKS, "calls": calls, "sizes": [_case(index, rounds) for index in range(len(SIZES))]}


def _case(index: int, rounds: list[dict[str, list[list[float]]]]) -> dict[str, Any]:
    kib = SIZES[index]
    times = {name: [each[name][index] for each in rounds] for name in SYSTEMS}
    medians = {name: [statistics.median(each) for each in times[name]] for name in SYSTEMS}
    return {
        "kib": kib,
        "us": {name: _percentiles([t for each in times[name] for t in each]) for name in SYSTEMS},
        "gloo_over": {
            name: round(statistics.median(g / t for g, t in zip(medians["gloo"], medians[name], strict=True)), 2)
            for name in GOALS
        },
        "epyc_goal_us": {name: goals[index] for name, goals in GOALS.items()},
    }


def _percentiles(times: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(times, n=20)
    return {"p50": round(1e6 * cuts[9], 1), "p95": round(1e6 * cuts[18], 1)}


def table(result: dict[str, Any]) -> Sheet:
    """Return a row for each size."""
    rows = [
        [
            f"{case['kib']} KiB",
            *(f"{case['us'][name]['p50']:.1f} / {case['us'][name]['p95']:.1f}" for name in SYSTEMS),
            *(f"{case['gloo_over'][name]:.1f}x" for name in GOALS),
        ]
        for case in result["sizes"]
    ]
    headings = ["size", *SYSTEMS, *(f"gloo / {name}" for name in GOALS)]
    return Sheet(f"Microseconds of a sum over {RANKS} ranks, p50 / p95", headings, rows)


def _ranks(rounds: int, calls: int) -> list[dict[str, list[list[float]]]]:
    """Return the seconds of rank 0's calls, by round, system and size."""
    # Forked, so that they share the segment and the sockets; this process has no threads of torch yet.
    forked = get_context("fork")
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        descriptor = os.memfd_create("exchange")
        stack.callback(os.close, descriptor)
        os.ftruncate(descriptor, segment_bytes(RANKS))
        with socket.create_server(("127.0.0.1", 0)) as server:
            ends = [stack.enter_context(socket.create_connection(server.getsockname()))]
            ends.append(stack.enter_context(server.accept()[0]))
        receiver, sender = forked.Pipe(duplex=False)
        processes = []
        for rank, end in enumerate(ends):
            end.setblocking(False)
            place = Place(descriptor, end, Path(folder, "gloo"))
            processes.append(forked.Process(target=_run, args=(rank, place, rounds, calls, sender)))
            processes[-1].start()
        sender.close()
        result: list[dict[str, list[list[float]]]] = receiver.recv()
        for process in processes:
            process.join()
    return result


def _run(rank: int, place: Place, rounds: int, calls: int, results: Connection) -> None:
    """Run one rank; rank 0 sends its times."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{place.file}", rank=rank, world_size=RANKS)
    with (
        Exchange(place.descriptor, RANKS, rank) as memory,
        TcpExchange({1 - rank: place.other}, RANKS, rank) as tcp,
    ):
        systems: dict[str, Callable[[Tensor], object]] = {"memory": memory.sum, "tcp": tcp.sum, "gloo": dist.all_reduce}
        times = [
            {name: [_seconds(systems[name], 256 * kib, calls) for kib in SIZES] for name in SYSTEMS}
            for _ in range(rounds)
        ]
    dist.destroy_process_group()
    if rank == 0:
        results.send(times)


def _seconds(work: Callable[[Tensor], object], count: int, calls: int) -> list[float]:
    values, taken = torch.zeros(count), []
    for _ in range(BEFORE):
        work(values)
    for _ in range(calls):
        start = time.perf_counter()
        work(values)
        taken.append(time.perf_counter() - start)
    return taken


if __name__ == "__main__":
    sys.exit(question.main(__doc__, measure, table))
