"""A command with a time limit, which also applies to all its child processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import IO

GRACE_SECONDS = 5.0
"""Time between SIGTERM and SIGKILL."""
TAIL = 40


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended. `code` is None after a timeout; `tail` has its last lines of output."""

    code: int | None
    seconds: float
    tail: Sequence[str]


def run(command: Sequence[str], *, seconds: float, environment: Mapping[str, str], log: Path) -> Ended:
    """Run a command; its output goes to this process's output and to `log`. It has its own process group, which is
    ended whenever this returns.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    tail: deque[str] = deque(maxlen=TAIL)
    began = time.monotonic()
    process = subprocess.Popen(
        command,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    assert process.stdout is not None
    reader = Thread(target=_copy, args=(process.stdout, log, tail), daemon=True)
    reader.start()
    code: int | None
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        code = None
    finally:
        _end(process)
    reader.join(GRACE_SECONDS)
    return Ended(code, time.monotonic() - began, list(tail))


def _copy(source: IO[str], log: Path, tail: deque[str]) -> None:
    with source, log.open("w", encoding="utf-8") as file:
        for line in source:
            file.write(line)
            file.flush()
            sys.stdout.write(line)
            sys.stdout.flush()
            if line.strip():
                tail.append(line.rstrip())


def _end(process: subprocess.Popen[str]) -> None:
    """End the whole group with SIGTERM, then SIGKILL."""
    for number, grace in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, GRACE_SECONDS)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace)
