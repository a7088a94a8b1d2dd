"""Helpers leave their cores to others on request, and results do not change."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import torch
from kernel_support.instructions import BUILDS, Build

from plimsoll_kernels.cpu import crew
from plimsoll_kernels.cpu.crew import leave
from plimsoll_kernels.cpu.linear import PackedLinear
from plimsoll_kernels.cpu.threads import share, take_over, thread_count

TASKS = Path("/proc/self/task")
ROWS, COLUMNS, INPUTS = 64, 2048, 512
MORE_THAN_ANYBODY = 40
"""The number of threads, so large that some of them are new in this process."""


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = thread_count()
    yield
    leave(0)
    share(before)


@pytest.fixture
def build() -> Build:
    chosen = BUILDS[0]
    chosen.kernels()
    return chosen


def product(build: Build) -> tuple[PackedLinear, torch.Tensor]:
    numbers = torch.Generator().manual_seed(0)
    weight, rows = torch.randn(COLUMNS, INPUTS, generator=numbers), torch.randn(ROWS, INPUTS, generator=numbers)
    return PackedLinear(build.kernels(), weight), rows


def turns(threads: Iterable[Path]) -> int:
    """Return how often they were scheduled on a core."""
    return sum(int((each / "schedstat").read_text().split()[2]) for each in threads)


def settled(threads: Iterable[Path]) -> int:
    """Return the same count after it has stopped growing."""
    for _ in range(500):
        before = turns(threads)
        time.sleep(0.02)
        if turns(threads) == before:
            return before
    raise AssertionError("the helpers never come to rest")


def test_helpers_sleep_while_cores_are_left_to_others_and_come_back(build: Build) -> None:
    share(MORE_THAN_ANYBODY)
    take_over()  # torch then has no helpers of its own
    before = set(TASKS.iterdir())
    linear, rows = product(build)
    expected = linear(rows)
    helpers = set(TASKS.iterdir()) - before
    assert helpers
    leave(MORE_THAN_ANYBODY - 1)
    linear(rows)
    asleep = settled(helpers)
    for _ in range(50):
        assert torch.equal(linear(rows), expected)
    assert turns(helpers) == asleep
    leave(0)
    for _ in range(500):
        assert torch.equal(linear(rows), expected)
        if turns(helpers) > asleep:
            return
    raise AssertionError("no helper came back")


@pytest.mark.parametrize("cores", [1, 2, 3, 100, 2**31 - 1])
def test_whoever_calls_computes_whatever_is_left_to_others(build: Build, cores: int) -> None:
    share(3)
    linear, rows = product(build)
    expected = linear(rows)
    leave(cores)
    assert all(torch.equal(linear(rows), expected) for _ in range(20))


@pytest.mark.long
def test_helpers_come_and_go_amid_products(build: Build) -> None:
    share(3)
    linear, rows = product(build)
    expected = linear(rows)
    over = threading.Event()

    def waver() -> None:
        count = 0
        while not over.is_set():
            leave(count % 4)
            count += 1

    wavering = threading.Thread(target=waver)
    wavering.start()
    try:
        assert all(torch.equal(linear(rows), expected) for _ in range(500))
    finally:
        over.set()
        wavering.join()


def test_less_than_nothing_is_nothing(build: Build) -> None:
    share(2)
    linear, rows = product(build)
    expected = linear(rows)
    leave(-5)
    assert torch.equal(linear(rows), expected)


def test_without_kernels_there_is_nobody_to_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(crew, "library", lambda: asked.append(1))
    leave(1)
    assert asked
