"""A part of the work: its description, its time limit, and its status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

SKIPPED = 77
"""Exit code of a command that could not run; its last line of output says why."""
NO_TESTS = 5
"""pytest's exit code if it had nothing to run, because all tests of the part have passed before."""


class Status(StrEnum):
    """Status of a part. The first two are done; the others run again."""

    PASSED = "passed"
    SKIPPED = "skipped"
    FAILED = "failed"
    STOPPED = "stopped"
    NOT_BEGUN = "not begun"


DONE = (Status.PASSED, Status.SKIPPED)


@dataclass(frozen=True, slots=True)
class Part:
    """A command that runs as a separate process. `proves`: description of what it checks or measures. `seconds`: time
    limit. `command`: arguments of the interpreter; `{json}` stands for the file of its result, without which it has
    failed. `tests`: pytest runs it, so passed tests need not run again. `needs`: whether it requires all packages of
    the project and its tests.
    """

    name: str
    proves: str
    seconds: int
    command: Sequence[str]
    tests: bool = False
    needs: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def leaves_result(self) -> bool:
        """Whether its command writes a result."""
        return any("{json}" in argument for argument in self.command)

    def arguments(self, result: Path) -> list[str]:
        """Return the interpreter's arguments, with the path `result` for `{json}`."""
        return [argument.replace("{json}", str(result)) for argument in self.command]


def status_of(code: int | None, *, tests: bool) -> Status:
    """Return the status for the exit code of a part's command; None is a timeout."""
    if code is None:
        return Status.STOPPED
    if code == 0 or (tests and code == NO_TESTS):
        return Status.PASSED
    return Status.SKIPPED if code == SKIPPED else Status.FAILED
