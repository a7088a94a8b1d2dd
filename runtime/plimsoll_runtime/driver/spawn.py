"""What both clients do to start the engine's process: a private socket, a command line, an environment."""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.messages import EngineFailed
from plimsoll_runtime.errors import (
    EngineDeadError,
    ErrorKind,
    MemoryLimitError,
    ModelError,
    PlimsollError,
    SourceError,
    UsageError,
)

_ERRORS: dict[str, type[PlimsollError]] = {
    ErrorKind.USAGE.value: UsageError,
    ErrorKind.SOURCE.value: SourceError,
    ErrorKind.MODEL.value: ModelError,
    ErrorKind.MEMORY.value: MemoryLimitError,
    ErrorKind.ENGINE.value: EngineDeadError,
}


@dataclass(frozen=True, slots=True)
class Launch:
    """One engine process to be: the folder of its socket, and how it is started."""

    folder: tempfile.TemporaryDirectory[str]
    address: str
    command: list[str]
    environment: dict[str, str]


def prepare(config: EngineConfig, factory: str | None = None) -> Launch:
    """A socket that only this user can open, and the command line. `factory` replaces the builder in tests."""
    folder = tempfile.TemporaryDirectory(prefix="plimsoll-")
    address = f"ipc://{Path(folder.name) / 'engine'}"
    command = [sys.executable, "-m", "plimsoll_runtime.driver.process", address, str(os.getpid())]
    environment = dict(os.environ)
    if config.threads is not None:
        environment["OMP_NUM_THREADS"] = str(config.threads)
    return Launch(folder, address, [*command, *([factory] if factory else [])], environment)


def failure(event: EngineFailed) -> PlimsollError:
    """The error that the engine ended with, of the class that it had there."""
    return _ERRORS.get(event.kind, EngineDeadError)(event.message)


def died(code: int | None) -> EngineDeadError:
    """The error for a process that ended without a word."""
    how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with code {code}"
    hint = "; the kernel kills what uses too much memory (see the memory limit)" if code == -9 else ""
    return EngineDeadError(f"the engine process {how}{hint}")
