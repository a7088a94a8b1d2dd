"""Checks constraints before they go to the engine."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import weakref
from collections import OrderedDict

import msgspec

from plimsoll_runtime.engine.protocol.constraint import Constraint, ConstraintError
from plimsoll_runtime.structured.grammar import TOO_MUCH

MOST_KNOWN = 256


class Checker:
    """Checks constraints in a separate process, which starts at the first check.

    Thread-safe. A check can take a second, so do not run it on an event loop.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[Constraint, str | None] = OrderedDict()
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def has_passed(self, constraint: Constraint) -> bool:
        """Return whether the constraint has passed a check. Never waits for a running check."""
        return self._known.get(constraint, TOO_MUCH) is None

    def check(self, constraint: Constraint) -> None:
        """Check a constraint. Raises ConstraintError if no model can enforce it."""
        with self._lock:
            if constraint not in self._known:
                self._known[constraint] = self._try(constraint)
                if len(self._known) > MOST_KNOWN:
                    self._known.popitem(last=False)
            self._known.move_to_end(constraint)
            wrong = self._known[constraint]
        if wrong is not None:
            raise ConstraintError(wrong)

    def _try(self, constraint: Constraint) -> str | None:
        """Return the error of a constraint, or None. If a trial ends the process, the next trial starts another."""
        process = self._process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(msgspec.json.encode(constraint) + b"\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except OSError:
            answer = b""
        if not answer:
            self._process = None
            _end(process)
            return TOO_MUCH
        wrong: str | None = msgspec.json.decode(answer, type=str | None)
        return wrong

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "plimsoll_runtime.structured.check_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        weakref.finalize(self, _end, process)
        return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):  # unsent data for a process that has ended
                pipe.close()
