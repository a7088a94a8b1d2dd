"""`python -m groups.steps`: a decoder's steps on two ranks, compared with one process with two threads.

- whole: one process with two threads.
- halves: two processes of one thread, each with half of the model, without exchange. Its ratio to *whole* bounds what
  two ranks can reach.
- memory, tcp: the same processes with exchange over shared memory, and over TCP on the loopback interface.

The systems take turns in each round. Times are of the decoder's call; of two processes, of the slower one.
"""

from __future__ import annotations

import os
import socket
import statistics
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch
from torch import Tensor

import question
from options import Options
from plimsoll_kernels.cpu.exchange import AnyExchange, Exchange, segment_bytes
from plimsoll_kernels.cpu.tcp_exchange import TcpExchange
from plimsoll_runtime.execution.attention.backends.cpu import CpuBackend
from plimsoll_runtime.execution.attention.base import AttentionBatch, BlockTables
from plimsoll_runtime.execution.device.select import take_threads
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.models.compose.decoder import program_of
from plimsoll_runtime.models.decoder import Decoder
from plimsoll_runtime.models.load import load_decoder
from plimsoll_runtime.models.ops.reduce import Reduce
from plimsoll_runtime.models.program import Program
from plimsoll_runtime.models.registry.registry import describe
from plimsoll_runtime.parallel.collectives import LocalCollectives
from plimsoll_runtime.parallel.member import CountedCollectives
from plimsoll_runtime.parallel.shard import shard
from plimsoll_runtime.weights.sources.resolve import resolve
from serving import models
from tables import Sheet

RANKS, BLOCK, CONTEXT = 2, 16, 512
SYSTEMS = ("whole", "halves", "memory", "tcp")
LEAST_SECONDS = 0.5
"""Work of each system and case in a round."""


class Case(NamedTuple):
    """A step of `sequences` sequences, each with `rows` rows after `before` tokens."""

    name: str
    sequences: int
    rows: int
    before: int


CASES = (Case("1 row", 1, 1, CONTEXT), Case("64 rows", 64, 1, CONTEXT), Case("chunk of 1024", 1, 1024, 0))


class Place(NamedTuple):
    """How the ranks find each other: the segment, and the socket to the other rank."""

    descriptor: int
    other: socket.socket


class Steps:
    """One decoder, its cache, and the steps of all cases."""

    def __init__(self, program: Program, exchange: AnyExchange | None) -> None:
        files = resolve(models.source(models.SMALL))
        collectives = None if exchange is None else CountedCollectives(LocalCollectives(exchange))
        self._decoder: Decoder = load_decoder(
            files, program, torch.bfloat16, device=torch.device("cpu"), fused=True, collectives=collectives
        )
        blocks = -(-(CONTEXT + 1024) // BLOCK)
        cache = KvCache(program.facts.attention, 64 * blocks + 1, BLOCK, torch.bfloat16, torch.device("cpu"))
        self._backend = CpuBackend(cache)
        self._blocks = blocks

    def run(self, case: Case, count: int) -> float:
        """Return the median seconds of `count` steps."""
        tokens, positions, batch = self._inputs(case)
        taken = []
        with torch.inference_mode():
            for _ in range(count):
                start = time.perf_counter()
                self._decoder(tokens, positions, self._backend.begin(batch))
                taken.append(time.perf_counter() - start)
        return statistics.median(taken)

    def _inputs(self, case: Case) -> tuple[Tensor, Tensor, AttentionBatch]:
        tables = [list(range(1 + n * self._blocks, 1 + (n + 1) * self._blocks)) for n in range(case.sequences)]
        positions = torch.arange(case.before, case.before + case.rows)
        cells = [
            table[position // BLOCK] * BLOCK + position % BLOCK for table in tables for position in positions.tolist()
        ]
        rows = case.sequences * case.rows
        tokens = torch.randint(300, models.SMALL.vocab, (rows,), generator=torch.Generator().manual_seed(0))
        batch = AttentionBatch(
            [case.rows] * case.sequences,
            [case.before + case.rows] * case.sequences,
            BlockTables.of(tables),
            torch.tensor(cells),
        )
        return tokens, positions.repeat(case.sequences), batch


def measure(chosen: Options) -> dict[str, Any]:
    """Return milliseconds of each case and system: medians over rounds, and medians of the ratios of a round."""
    models.source(models.SMALL)
    seconds = max(0.05, LEAST_SECONDS * chosen.scale)
    rounds = _measured(chosen.rounds, seconds)
    return {"ranks": RANKS, "model": models.SMALL.name, "cases": [_case(case, rounds) for case in CASES]}


def _case(case: Case, rounds: list[dict[tuple[str, str], float]]) -> dict[str, Any]:
    times = {name: [each[name, case.name] for each in rounds] for name in SYSTEMS}

    def ratio(one: str, other: str) -> float:
        return round(statistics.median(a / b for a, b in zip(times[one], times[other], strict=True)), 3)

    return {
        "case": case.name,
        "ms": {name: round(1e3 * statistics.median(times[name]), 3) for name in SYSTEMS},
        "speed_of_whole": {name: ratio("whole", name) for name in SYSTEMS[1:]},
    }


def table(result: dict[str, Any]) -> Sheet:
    """Return a row for each case."""
    rows = [
        [
            case["case"],
            *(f"{case['ms'][name]:.2f}" for name in SYSTEMS),
            *(f"{case['speed_of_whole'][name]:.3f}" for name in SYSTEMS[1:]),
        ]
        for case in result["cases"]
    ]
    headings = ["step", *(f"{name} ms" for name in SYSTEMS), *(f"{name}, of whole" for name in SYSTEMS[1:])]
    return Sheet(f'Steps of "{result["model"]}" in bfloat16, {RANKS} ranks', headings, rows)


def _measured(rounds: int, seconds: float) -> list[dict[tuple[str, str], float]]:
    """Return the seconds of a step, by round, system and case."""
    forked = get_context("fork")
    with ExitStack() as stack:
        descriptor = os.memfd_create("exchange")
        stack.callback(os.close, descriptor)
        os.ftruncate(descriptor, segment_bytes(RANKS))
        with socket.create_server(("127.0.0.1", 0)) as server:
            ends = [stack.enter_context(socket.create_connection(server.getsockname()))]
            ends.append(stack.enter_context(server.accept()[0]))
        pipes, processes = [], []
        for rank in (None, *range(RANKS)):
            ours, theirs = forked.Pipe()
            place = None
            if rank is not None:
                ends[rank].setblocking(False)
                place = Place(descriptor, ends[rank])
            processes.append(forked.Process(target=_serve, args=(rank, place, theirs)))
            processes[-1].start()
            theirs.close()
            pipes.append(ours)
        for pipe in pipes:
            pipe.recv()
        counts = {case.name: max(3, round(seconds / _asked(pipes[:1], "whole", case, 3))) for case in CASES}
        found = []
        for _ in range(rounds):
            times = {}
            for case in CASES:
                for system in SYSTEMS:
                    wanted = pipes[:1] if system == "whole" else pipes[1:]
                    times[system, case.name] = _asked(wanted, system, case, counts[case.name])
            found.append(times)
        for pipe in pipes:
            pipe.send(None)
        for process in processes:
            process.join()
    return found


def _asked(pipes: list[Connection], system: str, case: Case, count: int) -> float:
    for pipe in pipes:
        pipe.send((system, case, count))
    return max(float(pipe.recv()) for pipe in pipes)


def _serve(rank: int | None, place: Place | None, pipe: Connection) -> None:
    """Run the steps that the pipe asks for."""
    program = program_of(describe(resolve(models.source(models.SMALL)).config))
    take_threads(RANKS if rank is None else 1)
    with ExitStack() as stack:
        if rank is None or place is None:
            steps = {"whole": Steps(program, None)}
            meet = None
        else:
            meet = stack.enter_context(Exchange(place.descriptor, RANKS, rank))
            tcp = stack.enter_context(TcpExchange({1 - rank: place.other}, RANKS, rank))
            part = shard(program, RANKS, rank, in_kernels=True)
            steps = {
                "halves": Steps(_without_exchange(part), None),
                "memory": Steps(part, meet),
                "tcp": Steps(part, tcp),
            }
        pipe.send("ready")
        while (asked := pipe.recv()) is not None:
            system, case, count = asked
            if meet is not None:
                meet.sum(torch.zeros(1))
            pipe.send(steps[system].run(case, count))


def _without_exchange(part: Program) -> Program:
    """Return a rank's program without its sums."""
    kept = [not isinstance(op, Reduce) for op in part.ops]
    ends = [sum(kept[:at]) for at in part.layers]
    assert all(first < end for first, end in pairwise(ends))
    return replace(part, ops=tuple(op for op in part.ops if not isinstance(op, Reduce)), layers=tuple(ends))


if __name__ == "__main__":
    sys.exit(question.main(__doc__, measure, table))
