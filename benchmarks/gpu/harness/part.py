"""A part of the work: what it proves, for how long it may run, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

SKIPPED = 77
"""The exit code of a command that could not be tried here; its last line of output says why."""
NO_TESTS = 5
"""pytest's exit code where it had nothing to run: all tests of the part have passed before."""


class Status(StrEnum):
    """What became of a part. The first two are done; the others run again."""

    PASSED = "passed"
    SKIPPED = "skipped"
    FAILED = "failed"
    STOPPED = "stopped"
    NOT_BEGUN = "not begun"


DONE = (Status.PASSED, Status.SKIPPED)


@dataclass(frozen=True, slots=True)
class Part:
    """A command of its own process. `seconds` bounds it.

    `command` follows the interpreter. `{json}` in it is the file of its result, without which it has failed.
    `tests`: pytest runs it, so what has passed need not run again.
    `needs`: whether it runs only where nothing is missing of what the project's packages and tests import.
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
        """Whether its command writes one."""
        return any("{json}" in argument for argument in self.command)

    def arguments(self, result: Path) -> list[str]:
        """The command, with the file of its result put in."""
        return [argument.replace("{json}", str(result)) for argument in self.command]


def status_of(code: int | None, *, tests: bool) -> Status:
    """By the exit code of a part's command; None is one that was stopped."""
    if code is None:
        return Status.STOPPED
    if code == 0 or (tests and code == NO_TESTS):
        return Status.PASSED
    return Status.SKIPPED if code == SKIPPED else Status.FAILED
