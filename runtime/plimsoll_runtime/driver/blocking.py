"""The `LLM` class's side of an engine process: blocking, with the core's own interface."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable

import msgspec
import zmq

from plimsoll_runtime.driver.spawn import Launch, died, failure, prepare
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.messages import (
    AbortRequests,
    AddRequest,
    Command,
    EngineFailed,
    EngineInfo,
    EngineStats,
    Event,
    LoadProgress,
    ResetPrefixCache,
    Shutdown,
    StepOutputs,
)
from plimsoll_runtime.errors import PlimsollError

POLL_MS = 200
STOP_SECONDS = 5


class BlockingEngine:
    """An engine in a child process that is driven like a core of one's own: add, step, abort."""

    def __init__(self, config: EngineConfig, *, factory: str | None = None) -> None:
        """Start and wait until the model is loaded. Raises what it could not start for."""
        self._launch: Launch = prepare(config, factory)
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PAIR)
        for option in (zmq.LINGER, zmq.SNDHWM, zmq.RCVHWM):
            self._socket.set(option, 0)
        self._socket.bind(self._launch.address)
        self._decoder = msgspec.msgpack.Decoder(Event)
        self._process = subprocess.Popen(self._launch.command, env=self._launch.environment)
        self._socket.send(msgspec.msgpack.encode(config))
        self.stats = EngineStats()
        try:
            self.info = self._wait_ready()
        except BaseException:
            self.stop()
            raise

    def add(self, request: AddRequest) -> None:
        """Send a request; what the engine says against it comes as an output with an error."""
        self._send(request)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Forget requests."""
        if ids := list(request_ids):
            self._send(AbortRequests(ids))

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix."""
        self._send(ResetPrefixCache())

    def step(self) -> StepOutputs:
        """Wait for the next step's outputs. Raises EngineDeadError when the process ends."""
        while True:
            event = self._next()
            if isinstance(event, StepOutputs):
                self.stats = event.stats
                return event

    def stop(self) -> None:
        """End the process."""
        if self._process.poll() is None:
            self._send(Shutdown())
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._socket.close()
        self._launch.folder.cleanup()

    def _wait_ready(self) -> EngineInfo:
        while True:
            event = self._next()
            if isinstance(event, EngineInfo):
                return event
            if not isinstance(event, LoadProgress):
                raise PlimsollError(f"the engine said {type(event).__name__} before it was ready")

    def _next(self) -> Event:
        while not self._socket.poll(POLL_MS):
            code = self._process.poll()
            if code is not None and not self._socket.poll(0):
                raise died(code)
        event: Event = self._decoder.decode(self._socket.recv())
        if isinstance(event, EngineFailed):
            raise failure(event)
        return event

    def _send(self, command: Command) -> None:
        self._socket.send(msgspec.msgpack.encode(command))
