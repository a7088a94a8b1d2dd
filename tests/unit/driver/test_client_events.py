"""In which order the client hears of events and of the process's end, over a stand-in for the process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from plimsoll_runtime.driver import client as client_module
from plimsoll_runtime.driver.child import KILL_SECONDS
from plimsoll_runtime.driver.client import EVENTS_AT_ONCE, AsyncEngine
from plimsoll_runtime.engine.messages import EngineFailed, EngineInfo, EngineStats, Event, StepOutputs
from plimsoll_runtime.errors import EngineDeadError, ErrorKind

INFO = EngineInfo("m", "llama", "float32", "cpu", "torch", 10, 10, 4, 10, 1, 1, [])


class StandIn:
    """An engine's process as `AsyncEngine` knows it: pipes for descriptors, and events that a test puts in."""

    def __init__(self) -> None:
        self.events_fd, self._come = os.pipe()
        self.ended_fd, self._ending = os.pipe()
        self.waiting: list[Event] = []
        self.repeats: Event | None = None
        self.owes_a_reason = False
        self.ended = self.closed = self.is_stuck = False
        self.patience: float | None = None
        self.closings = 0

    def comes(self, event: Event) -> None:
        self.waiting.append(event)
        os.write(self._come, b"!")

    def ends(self) -> None:
        if not self.ended:
            self.ended = True
            os.close(self._ending)

    def receive(self) -> Event | None:
        if self.closed:
            raise zmq.ZMQError(zmq.ENOTSOCK)
        return self.waiting.pop(0) if self.waiting else self.repeats

    def send(self, command: object) -> None:
        """Nobody reads it."""

    def kill(self) -> None:
        if not self.is_stuck:
            self.ends()

    def check(self) -> None:
        """It never hangs."""

    def death(self) -> EngineDeadError:
        return EngineDeadError("it ended with code 6")

    def close(self, patience: float = KILL_SECONDS) -> None:
        self.closed, self.patience = True, patience
        self.closings += 1

    def free(self) -> None:
        self.ends()
        for descriptor in (self.events_fd, self._come, self.ended_fd):
            os.close(descriptor)


@pytest.fixture
def child() -> Iterator[Any]:
    made = StandIn()
    yield made
    made.free()


async def ended(engine: AsyncEngine) -> None:
    """Wait until the client has seen that the process is gone."""
    async with asyncio.timeout(60):
        await engine._gone.wait()


async def test_events_that_are_left_at_the_end_are_read_from_no_closed_socket(child: Any) -> None:
    problems: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, problem: problems.append(problem))
    child.waiting = [StepOutputs([], EngineStats(steps=step)) for step in range(2 * EVENTS_AT_ONCE)]
    child.repeats = StepOutputs([], EngineStats())
    engine = AsyncEngine(child, None)
    await engine.stop()
    for _ in range(3):
        await asyncio.sleep(0)
    assert child.closed
    assert problems == []


async def test_a_reason_that_comes_after_the_end_is_waited_for(child: Any) -> None:
    child.owes_a_reason = True
    engine = AsyncEngine(child, None)
    child.ends()
    await ended(engine)
    assert engine.alive, "its reason is on the way"
    child.comes(EngineFailed(ErrorKind.MEMORY.value, "the device is full"))
    async with asyncio.timeout(60):
        await engine.wait_dead()
    assert engine.failure is not None
    assert (engine.failure.kind, str(engine.failure)) == (ErrorKind.MEMORY, "the device is full")
    await engine.stop()


async def test_a_reason_that_never_comes_is_not_waited_for_for_ever(
    child: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "LAST_WORDS_SECONDS", 0.01)
    child.owes_a_reason = True
    engine = AsyncEngine(child, None)
    child.ends()
    async with asyncio.timeout(60):
        await engine.wait_dead()
    assert str(engine.failure) == "it ended with code 6"
    await engine.stop()


async def test_an_end_without_a_reason_is_told_at_once(child: Any) -> None:
    engine = AsyncEngine(child, None)
    child.ends()
    await ended(engine)
    assert not engine.alive
    assert str(engine.failure) == "it ended with code 6"
    await engine.stop()


async def test_one_that_is_not_gone_when_it_was_killed_leaves_no_descriptor_with_the_loop(
    child: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "KILL_SECONDS", 0.01)
    child.is_stuck = True
    engine = AsyncEngine(child, None)
    await engine.stop()
    assert child.closed
    assert child.patience == 0, "the loop is not held up for what was waited for already"
    loop = asyncio.get_running_loop()
    assert not loop.remove_reader(child.ended_fd), "another descriptor of its number would never be polled"
    assert not loop.remove_reader(child.events_fd)


async def test_it_is_stopped_once_however_many_ask(child: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By then the number of its descriptor may be another's, whose reader would be removed."""
    engine = AsyncEngine(child, None)
    first = asyncio.ensure_future(engine.stop())
    await asyncio.sleep(0)
    second = asyncio.ensure_future(engine.stop())
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        await asyncio.gather(first, second)
    assert child.closings == 1
    removed: list[int] = []
    monkeypatch.setattr(asyncio.get_running_loop(), "remove_reader", removed.append)
    await engine.stop()
    assert child.closings == 1
    assert removed == []


async def test_to_cancel_a_stop_kills_the_process_and_another_call_waits_for_its_end(child: Any) -> None:
    child.comes(INFO)
    engine = AsyncEngine(child, None)
    stopping = asyncio.ensure_future(engine.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert child.ended, "killed without the patience that one that serves gets"
    async with asyncio.timeout(60):
        await engine.stop()
    assert child.closings == 1
