"""One child process: bound to its parent's life, with its output in a file, stopped with SIGTERM and then SIGKILL."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

PARENT_DEATH = Path(__file__).with_name("parent_death.py")
TAIL_BYTES = 16 << 10
TAIL_LINES = 8


@dataclass(frozen=True, slots=True)
class Launch:
    """A process to start. `url` is the address it will listen on, `log` the file for its output, `last_words` the file
    in which it writes its last error.
    """

    command: tuple[str, ...]
    url: str
    log: Path
    last_words: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    pass_fds: tuple[int, ...] = ()


class Child:
    """A running child process. It leads its own session, so that a terminal's Ctrl-C does not reach it."""

    def __init__(self, launch: Launch, process: asyncio.subprocess.Process, log_begin: int) -> None:
        self._launch = launch
        self._process = process
        self._log_begin = log_begin

    @classmethod
    async def start(cls, launch: Launch) -> Child:
        """Start the process. Raises OSError."""
        launch.last_words.unlink(missing_ok=True)
        with launch.log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-I", "-S", str(PARENT_DEATH), str(os.getpid())),
                *launch.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **launch.environment, "PLIMSOLL_TERMINATION_LOG": str(launch.last_words)},
                pass_fds=launch.pass_fds,
                start_new_session=True,
            )
            return cls(launch, process, log.tell())

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    async def wait(self) -> int:
        """Wait for the end and return the exit code, negative for a signal."""
        return await self._process.wait()

    def terminate(self) -> None:
        """Send SIGTERM, on which the process finishes running requests and exits."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process and all processes it has started."""
        self._signal(signal.SIGKILL, group=True)

    def _signal(self, number: signal.Signals, *, group: bool = False) -> None:
        try:
            if group:
                os.killpg(self.pid, number)  # the whole session: its members may outlive the leader
            elif self._process.returncode is None:
                os.kill(self.pid, number)
        except ProcessLookupError:
            return

    def why(self, code: int) -> str:
        """Return how the process ended by its exit code, with its last words or the end of its log."""
        ended = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        said = _read(self._launch.last_words, 0) or _read(self._launch.log, self._log_begin)
        lines = [line for line in said.splitlines() if line.strip()][-TAIL_LINES:]
        return f"{ended}: " + "\n".join(lines) if lines else ended


def _read(path: Path, begin: int) -> str:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(begin, size - TAIL_BYTES))
            return file.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return ""
