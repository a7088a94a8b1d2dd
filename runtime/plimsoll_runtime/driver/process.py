"""The engine's own process: commands in, one message a step out, over a ZeroMQ pair.

Started as `python -m plimsoll_runtime.driver.process ADDRESS PARENT [FACTORY]`; the first message is the
`EngineConfig`. Signals meant for the server's group are ignored here: the parent says when to stop. The process never
outlives its parent.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import os
import signal
import sys
from collections.abc import Callable

import msgspec
import zmq

from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.core import EngineCore
from plimsoll_runtime.engine.messages import (
    AbortRequests,
    AddRequest,
    Command,
    EngineFailed,
    EngineStats,
    Event,
    LoadProgress,
    RequestOutput,
    ResetPrefixCache,
    Shutdown,
    StepOutputs,
)
from plimsoll_runtime.errors import ErrorKind, PlimsollError, UsageError

logger = logging.getLogger(__name__)

Factory = Callable[[EngineConfig, Callable[[str, float], None]], EngineCore]
BUILD = "plimsoll_runtime.driver.build:build_engine"
IDLE_MS = 1000
PR_SET_PDEATHSIG = 1


class EngineProcess:
    """The loop: take every command that is there, step while there is work, wait while there is none."""

    def __init__(self, address: str, parent: int) -> None:
        self._parent = parent
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PAIR)
        self._socket.set(zmq.SNDHWM, 0)
        self._socket.set(zmq.LINGER, 1000)
        self._socket.connect(address)
        self._commands = msgspec.msgpack.Decoder(Command)
        self._encoder = msgspec.msgpack.Encoder()

    def run(self, factory: Factory) -> int:
        """Serve until told to stop; the exit code."""
        try:
            config = msgspec.msgpack.decode(self._socket.recv(), type=EngineConfig)
            core = factory(config, lambda stage, fraction: self._send(LoadProgress(stage, fraction)))
            self._send(core.info)
            self._loop(core)
        except PlimsollError as error:
            return self._fail(error.kind, str(error))
        except MemoryError as error:
            return self._fail(ErrorKind.MEMORY, f"out of memory: {error}")
        except Exception as error:
            logger.exception("the engine failed")
            return self._fail(ErrorKind.ENGINE, f"{type(error).__name__}: {error}")
        return 0

    def _loop(self, core: EngineCore) -> None:
        told = EngineStats()
        while os.getppid() == self._parent:
            refused: list[RequestOutput] = []
            timeout = 0 if core.has_work else IDLE_MS
            while self._socket.poll(timeout):
                command = self._commands.decode(self._socket.recv())
                if isinstance(command, Shutdown):
                    return
                refused.extend(_apply(core, command))
                timeout = 0
            stepped = core.step() if core.has_work else StepOutputs([], core.stats)
            if refused or stepped.outputs or stepped.stats != told:
                told = stepped.stats
                self._send(StepOutputs([*refused, *stepped.outputs], stepped.stats))

    def _send(self, event: Event) -> None:
        self._socket.send(self._encoder.encode(event))

    def _fail(self, kind: ErrorKind, message: str) -> int:
        self._send(EngineFailed(kind.value, message))
        self._socket.close()
        return kind.exit_code


def _apply(core: EngineCore, command: Command) -> list[RequestOutput]:
    """Carry a command out; a request that cannot be served is answered at once."""
    if isinstance(command, AbortRequests):
        core.abort(command.request_ids)
    elif isinstance(command, ResetPrefixCache):
        core.reset_prefix_cache()
    elif isinstance(command, AddRequest):
        try:
            core.add(command)
        except UsageError as error:
            return [RequestOutput(command.request_id, finish_reason="error", error=str(error))]
    return []


def main() -> int:
    """Entry point of the process."""
    address, parent, *factory = sys.argv[1:]
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    module, _, name = (factory[0] if factory else BUILD).partition(":")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    process = EngineProcess(address, int(parent))
    return process.run(getattr(importlib.import_module(module), name))


if __name__ == "__main__":
    sys.exit(main())
