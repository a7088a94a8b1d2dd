"""Between two steps the engine process takes a limited number of commands, however many are queued."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from builders import make_core, request

from plimsoll_runtime.driver.clients.requests import as_command
from plimsoll_runtime.driver.process import engine_process as process_module
from plimsoll_runtime.driver.process.engine_process import COMMANDS_AT_ONCE, EngineProcess
from plimsoll_runtime.driver.process.handshake import Start
from plimsoll_runtime.driver.process.heartbeat import new_page
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.protocol.messages import Command, Shutdown
from plimsoll_telemetry.logs import LogSettings


class Parent:
    """The other end of the sockets, in this process."""

    def __init__(self, folder: Path) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._commands, self._events = (self._context.socket(kind) for kind in (zmq.PUSH, zmq.PULL))
        for name, socket in (("commands", self._commands), ("events", self._events)):
            socket.set(zmq.SNDHWM, 0)
            socket.bind(f"ipc://{folder}/{name}")
        start = Start(
            config=EngineConfig(model="none"),
            factory="none:none",
            commands=f"ipc://{folder}/commands",
            events=f"ipc://{folder}/events",
            parent=0,
            log=LogSettings("text", "runtime", 0),
        )
        self.process = EngineProcess(start, new_page())

    def send(self, *commands: Command) -> None:
        for command in commands:
            self._commands.send(msgspec.msgpack.encode(command))

    def taken(self) -> int:
        return self.process._pulse.read().taken

    def close(self) -> None:
        self.process._pulse.close()
        self.process.close()
        self._context.destroy(linger=0)


@pytest.fixture
def parent() -> Iterator[Parent]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # short enough for a socket's path
        made = Parent(Path(folder))
        yield made
        made.close()


def take(parent: Parent, core: Any) -> int:
    """Return how many commands one call takes, after at least one has arrived."""
    before = parent.taken()
    parent.process._commands.poll(20_000)
    assert parent.process._take_commands(core)
    return parent.taken() - before


def test_a_burst_is_taken_in_pieces_with_steps_between_them(parent: Parent) -> None:
    core, _ = make_core()
    burst = 3 * COMMANDS_AT_ONCE
    parent.send(*(as_command(request(f"r{i}", [1], max_tokens=50)) for i in range(burst)))
    counts: list[int] = []
    steps = 0
    while sum(counts) < burst:
        counts.append(take(parent, core))
        core.step()
        steps += 1
    assert max(counts) <= COMMANDS_AT_ONCE
    assert steps >= 3
    assert core.stats.running + core.stats.waiting == burst


def test_long_prompts_are_taken_one_at_a_time(parent: Parent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "BYTES_AT_ONCE", 400)
    core, _ = make_core()
    parent.send(*(as_command(request(f"r{i}", [1] * 200)) for i in range(5)))
    assert [take(parent, core) for _ in range(5)] == [1] * 5


def test_the_end_is_heard_among_others(parent: Parent) -> None:
    core, _ = make_core()
    parent.send(as_command(request("r", [1])), Shutdown())
    while parent.process._take_commands(core):
        pass
    assert parent.taken() == 2
