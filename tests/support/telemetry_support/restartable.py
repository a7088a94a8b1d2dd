"""Programs that a test kills and starts again."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from telemetry_support.plant import Part
from telemetry_support.tools import answers, await_ready, running


class Restartable:
    """A program that answers `url`/health with 200 when it is ready. As a context: killed at the end."""

    def __init__(
        self, name: str, argv: Sequence[str | Path], environment: Mapping[str, str], folder: Path, url: str
    ) -> None:
        self.name, self.url = name, url
        self._argv, self._environment = argv, environment
        self._log = folder / f"{name}.log"
        self._stack = ExitStack()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Restartable:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The running process."""
        assert self._process is not None, f"{self.name} was not started"
        return self._process

    def part(self, metrics: str) -> Part:
        """Return the running process as a part of a plant."""
        return Part(self.name, self.process.pid, self.url, metrics, self._log)

    def start(self) -> None:
        """Start it."""
        self._process = self._stack.enter_context(running(self._argv, self._log, self._environment))

    def await_ready(self) -> None:
        """Wait until it is ready. Raises AssertionError with its last output."""
        await_ready(self.process, self._log, lambda: answers(f"{self.url}/health"))

    def kill(self) -> None:
        """Kill it, if it runs."""
        self._stack.close()
