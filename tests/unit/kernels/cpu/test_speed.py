"""A trial measures the time of an undisturbed product, even if most calls are disturbed."""

from __future__ import annotations

from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any, cast

import pytest

from plimsoll_kernels.cpu import speed
from plimsoll_kernels.cpu.records import KernelsRecord


class Machine:
    """A clock, and kernels whose calls advance it by given microseconds."""

    def __init__(self) -> None:
        self.microseconds = 0

    def kernels(self, *taken: int, then: int) -> KernelsRecord:
        """Return kernels whose calls take the times `taken`, and then `then` each."""
        calls = chain(taken, repeat(then))

        def linear(*_: Any) -> None:
            self.microseconds += next(calls)

        return cast(KernelsRecord, SimpleNamespace(linear=linear, packed_elements=lambda *_: 1))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(speed, "time", SimpleNamespace(perf_counter=lambda: machine.microseconds / 1e6))
    return machine


def test_the_least_of_all_calls_counts(machine: Machine) -> None:
    systems = [machine.kernels(900, 130, 500, then=140), machine.kernels(then=800)]
    assert speed.product_seconds(systems, 64) == pytest.approx([130e-6, 800e-6])


def test_short_calls_are_tried_again_while_others_have_their_turns(machine: Machine) -> None:
    """All fast calls except the fortieth are disturbed: it is found, and the slow kernels do not seem faster."""
    fast = machine.kernels(*[150] * 39, 130, then=150)
    assert speed.product_seconds([fast, machine.kernels(then=1500)], 64) == pytest.approx([150e-6, 1500e-6])
    held_up = machine.kernels(4000, *[900] * 4, then=130)
    assert speed.product_seconds([held_up, machine.kernels(then=800)], 64) == pytest.approx([130e-6, 800e-6])


def test_a_turn_ends_by_its_calls_as_well(machine: Machine) -> None:
    begun = machine.microseconds
    speed.product_seconds([machine.kernels(then=1)], 64)
    assert machine.microseconds - begun == speed.REPEATS * speed.TURN_CALLS
