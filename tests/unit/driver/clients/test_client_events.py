"""The order of events and of the process's end at the client, with a fake process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Iterator
from typing import Any
from unittest.mock import create_autospec

import pytest
import zmq

from plimsoll_runtime.driver.clients import async_client as client_module
from plimsoll_runtime.driver.clients.async_client import AsyncEngine
from plimsoll_runtime.driver.process.child import EngineChild
from plimsoll_runtime.engine.protocol.messages import EngineInfo, EngineStats, ProcessFailed, StepOutputs
from plimsoll_runtime.errors import EngineDeadError, ErrorKind

INFO = EngineInfo("m", "llama", "float32", "cpu", "torch", 10, 10, 4, 10, 1, 1, [])


@pytest.fixture
def child() -> Iterator[Any]:
    """A fake engine process, controlled by `comes(event)` and `ends()`. Killing it ends it."""
    (events, coming), (ended, ending) = socket.socketpair(), socket.socketpair()
    with events, coming, ended, ending:
        made = create_autospec(EngineChild, instance=True, events_fd=events.fileno(), owes_a_reason=False)
        made.ended_fd, made.ends = ended.fileno(), ending.close
        made.kill.side_effect = ending.close
        made.receive.return_value = made.check.return_value = None
        made.death.return_value = EngineDeadError("it ended with code 6")

        def comes(*seen: Any) -> None:
            made.receive.side_effect = [*seen, *[None] * 99]
            coming.send(b"!")

        made.comes = comes
        yield made


async def soon(what: Awaitable[Any]) -> None:
    await asyncio.wait_for(what, 60)


async def test_events_that_are_left_at_the_end_are_read_from_no_closed_socket(child: Any) -> None:
    problems: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, problem: problems.append(problem))

    def endless() -> StepOutputs:
        if child.close.called:
            raise zmq.ZMQError(zmq.ENOTSOCK)
        return StepOutputs([], EngineStats())

    child.receive.side_effect = endless
    await AsyncEngine(child, None).stop()
    for _ in range(3):
        await asyncio.sleep(0)
    child.close.assert_called_once()
    assert problems == []


@pytest.mark.parametrize("owed", [False, True])
async def test_an_end_without_a_reason_is_told_as_soon_as_none_can_come(
    child: Any, owed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "LAST_WORDS_SECONDS", 0.01 if owed else 3600.0)
    child.owes_a_reason = owed
    engine = AsyncEngine(child, None)
    child.ends()
    await soon(engine.wait_dead())
    assert str(engine.failure) == "it ended with code 6"
    await engine.stop()


async def test_a_reason_that_comes_after_the_end_is_waited_for(child: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "LAST_WORDS_SECONDS", 3600.0)
    child.owes_a_reason = True
    engine = AsyncEngine(child, None)
    child.ends()
    await soon(engine._gone.wait())
    assert engine.alive, "its reason is on the way"
    child.comes(ProcessFailed(ErrorKind.MEMORY.value, "the device is full"))
    await soon(engine.wait_dead())
    assert engine.failure is not None
    assert (engine.failure.kind, str(engine.failure)) == (ErrorKind.MEMORY, "the device is full")
    await engine.stop()


async def test_one_that_is_not_gone_when_it_was_killed_leaves_no_descriptor_with_the_loop(
    child: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop is not blocked a second time, because `stop` has waited already."""
    monkeypatch.setattr(client_module, "KILL_SECONDS", 0.01)
    child.kill.side_effect = None
    await AsyncEngine(child, None).stop()
    child.close.assert_called_once_with(0.0)
    loop = asyncio.get_running_loop()
    assert not loop.remove_reader(child.ended_fd), "another descriptor of its number would never be polled"
    assert not loop.remove_reader(child.events_fd)


async def test_it_is_stopped_once_however_many_ask(child: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its descriptor's number may belong to another file by then, whose reader would be removed."""
    engine = AsyncEngine(child, None)
    await soon(asyncio.gather(engine.stop(), engine.stop()))
    child.close.assert_called_once()
    removed: list[int] = []
    monkeypatch.setattr(asyncio.get_running_loop(), "remove_reader", removed.append)
    await soon(engine.stop())
    child.close.assert_called_once()
    assert removed == []


async def test_to_cancel_a_stop_kills_the_process_and_another_call_waits_for_its_end(
    child: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancelling skips the time that a loaded engine gets to end by itself."""
    monkeypatch.setattr(client_module, "STOP_SECONDS", 3600.0)
    child.receive.side_effect = [INFO, *[None] * 99]
    engine = AsyncEngine(child, None)
    stopping = asyncio.ensure_future(engine.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    child.kill.assert_called_once()
    await soon(engine.stop())
    child.close.assert_called_once()
