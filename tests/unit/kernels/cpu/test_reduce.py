"""The decoder's sum over ranks: exact in every form, and an error that ends the step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch
from kernel_support.instructions import BUILDS, Build
from kernel_support.ranks import segment, wait_until_asleep
from kernel_support.reducing import Case, compute, decoder, step

from plimsoll_kernels.cpu.exchange import Exchange, ExchangeError
from plimsoll_kernels.cpu.threads import share, thread_count

CASES = [
    Case(rows=1, width=768, wider=0, scale=1.0, adds=True),
    Case(rows=1, width=768, wider=0, scale=1.0, adds=False),
    Case(rows=33, width=1000, wider=24, scale=0.5, adds=True),
    Case(rows=64, width=768, wider=0, scale=0.22, adds=True, threads=2),
    Case(rows=300, width=1001, wider=7, scale=3.0, adds=False, threads=2),
]


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = thread_count()
    yield
    share(before)


@contextmanager
def other_rank(build: Build, descriptor: int, cases: Sequence[Case]) -> Iterator[subprocess.Popen[str]]:
    """Run rank 1 in a process of its own, because the steps of a process run one at a time."""
    dtype = str(build.dtype).removeprefix("torch.")
    command = [sys.executable, "-m", "kernel_support.reducing", str(descriptor), "1", build.instructions, dtype]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, pass_fds=[descriptor], stdin=pipe, stdout=pipe, env=environment, text=True
    ) as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps(cases) + "\n")
        process.stdin.flush()
        assert lines(process, 1) == ["ready"]
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def lines(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline().strip() for _ in range(count)]


@pytest.mark.parametrize("build", BUILDS, ids=str)
def test_a_step_sums_over_ranks_exactly(build: Build) -> None:
    found = build.kernels()
    with segment(2) as descriptor, other_rank(build, descriptor, CASES) as process:
        with Exchange(descriptor, 2, 0) as exchange:
            for case in CASES:
                made, right = compute(found, build.dtype, exchange, case)
                assert right, case
                assert 0 < made.take_seconds()["reduce"] <= exchange.statistics().seconds * 2
        assert lines(process, len(CASES)) == ["right"] * len(CASES)


def test_a_failed_sum_ends_the_step_with_an_error() -> None:
    build = BUILDS[0]
    found = build.kernels()
    with segment(2) as descriptor, Exchange(descriptor, 2, 0) as exchange, ThreadPoolExecutor(1) as threads:
        made = decoder(found, build.dtype, exchange, CASES[0])
        tokens = torch.zeros(3, dtype=torch.int64)
        waiting = threads.submit(made, tokens, tokens, [], step(3))
        wait_until_asleep()
        exchange.abort()
        with pytest.raises(ExchangeError, match="the exchange was aborted"):
            waiting.result(timeout=60)
        with pytest.raises(ExchangeError, match="the exchange was aborted"):
            made(tokens, tokens, [], step(3))
        assert made.take_seconds()["norm"] == 0
