"""Says of constraints, before they go to the engine, whether they can be kept to."""

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
    """Safe to use from several threads; what it does takes up to a second, so not on an event loop.

    Constraints are tried in a process of its own, which is started when it is first needed.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[Constraint, str | None] = OrderedDict()
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def has_passed(self, constraint: Constraint) -> bool:
        """Whether a constraint is known to be one that can be kept to; at once, whatever is tried meanwhile."""
        return self._known.get(constraint, TOO_MUCH) is None

    def check(self, constraint: Constraint) -> None:
        """Raises ConstraintError for what cannot be kept to, whatever the model."""
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
        """What is wrong with a constraint. A process that a trial has ended is replaced by the next one."""
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
            with contextlib.suppress(OSError):  # what could not be written to a process that is gone
                pipe.close()
