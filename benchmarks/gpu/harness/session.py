"""Runs parts in order, each within its own time limit and all within that of the call."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpu.harness import bounded, ledger, sources
from gpu.harness.ledger import Ledger, Record
from gpu.harness.outcomes import Outcomes, write_done
from gpu.harness.part import Part, Status, status_of

LEAST_SECONDS = 20.0
"""With less time left, no part is started, because its imports alone may take that long."""


@dataclass(frozen=True, slots=True)
class Session:
    """A call's settings. `limit`: total seconds of its parts, or None. `state`: folder with the ledger, logs and
    installed packages; `out` gets a copy of the ledger, gpu-NAME.json. `site`: folder with installed missing packages,
    or None. `missing`: packages that are still missing. `again`: also run parts that are done. `processes`: number of
    pytest processes, 0 for no parallel tests.
    """

    name: str
    state: Path
    out: Path
    run: dict[str, Any]
    site: Path | None = None
    missing: Sequence[str] = ()
    limit: float | None = None
    again: bool = False
    processes: int = 0
    clock: Callable[[], float] = field(default=time.monotonic)

    @property
    def kept(self) -> Path:
        """Path of the ledger that the next call reads."""
        return self.state / f"{self.name}.json"

    @property
    def shared(self) -> Path:
        """Path of the ledger's copy in the folder of results."""
        return self.out / f"gpu-{self.name}.json"

    def ledger(self) -> Ledger:
        """Return the results of earlier calls. Raises ValueError for a file that is not a ledger."""
        return ledger.read(self.kept)

    def perform(self, parts: Sequence[Part]) -> Ledger:
        """Run the parts that are not done, in order, also after a part that failed. Return the ledger with their
        results. Raises the errors of `ledger`.
        """
        found = self.ledger()
        found.run = self.run
        ends = None if self.limit is None else self.clock() + self.limit
        digest = sources.digest()
        for part in parts:
            before = found.parts.get(part.name)
            if before is not None and before.done and not self.again:
                print(f"== {part.name}: {told(before, digest)}, before; AGAIN=1 runs it again", flush=True)
                continue
            left = part.seconds if ends is None else min(part.seconds, ends - self.clock())
            found.parts[part.name] = self._perform(part, None if self.again else before, left, digest)
            print(f"== {part.name}: {told(found.parts[part.name], digest)}", flush=True)
            found.write(self.kept, self.shared)
        return found

    def _perform(self, part: Part, before: Record | None, seconds: float, digest: str) -> Record:
        tests = self._tests_before(part, before)
        spent = 0.0 if before is None else before.seconds
        command = [sys.executable, *part.arguments(self._result(part)), *self._of_pytest(part, tests)]
        record = Record(Status.NOT_BEGUN, "", spent, _sources(before, digest), _shown(command), tests=tests)
        if part.needs and self.missing:
            reason = (
                f"{', '.join(self.missing)} missing: run make gpu-wheels on a machine with network access, "
                "then set WHEELS=FOLDER"
            )
            return replace(record, reason=reason)
        if seconds < min(LEAST_SECONDS, part.seconds):
            return replace(record, reason="the time of this call was up: call again")
        print(f"== {part.name}: at most {seconds:.0f} s; {part.proves}", flush=True)
        self._result(part).unlink(missing_ok=True)
        ended = bounded.run(command, seconds=seconds, environment=self._environment(part), log=self._log(part))
        if tests is not None:
            tests.read(self._outcomes(part))
        status, result = _status(ended.code, tests), _json(self._result(part))
        if status is Status.PASSED and part.leaves_result and result is None:
            status = Status.FAILED
        return replace(
            record,
            status=status,
            reason=_reason(status, ended, seconds, tests),
            seconds=spent + ended.seconds,
            result=result,
        )

    def _tests_before(self, part: Part, before: Record | None) -> Outcomes | None:
        """Return test results of earlier calls, including interrupted ones that did not write the ledger; None for a
        part without tests.
        """
        if not part.tests:
            return None
        if before is None:
            if self.again:
                self._outcomes(part).unlink(missing_ok=True)
            found = Outcomes()
        else:
            found = before.tests or Outcomes()
        found.read(self._outcomes(part))
        return found

    def _of_pytest(self, part: Part, tests: Outcomes | None) -> list[str]:
        if tests is None:
            return []
        done = self.state / f"{part.name}.done"
        done.parent.mkdir(parents=True, exist_ok=True)
        write_done(done, [*tests.passed, *tests.skipped])
        processes = ["-n", str(self.processes), "--dist", "worksteal"] if self.processes else []
        return ["--done", str(done), "--outcomes", str(self._outcomes(part)), *processes]

    def _environment(self, part: Part) -> dict[str, str]:
        first = [] if self.site is None else [self.site]
        return {**os.environ, "PYTHONPATH": sources.search_path(*first), "PYTHONUNBUFFERED": "1", **part.environment}

    def _result(self, part: Part) -> Path:
        return self.state / f"{part.name}.result.json"

    def _outcomes(self, part: Part) -> Path:
        return self.state / f"{part.name}.outcomes"

    def _log(self, part: Part) -> Path:
        return self.state / "logs" / f"{part.name}.log"


def told(record: Record, digest: str) -> str:
    """Return the status of a part in one line."""
    text = f"{record.status} after {record.seconds:.0f} s"
    if record.status is Status.NOT_BEGUN:
        text = str(record.status)
    if record.tests is not None:
        text += f", {record.tests}"
    if record.sources != digest:
        text += ", on other sources"
    return text + (f": {record.reason}" if record.reason else "")


def _sources(before: Record | None, digest: str) -> str:
    """Return digests of the sources whose test results count: the present one, and those of earlier calls in which
    tests passed.
    """
    if before is None or before.tests is None or not before.tests.passed:
        return digest
    return before.sources if digest in before.sources else f"{before.sources}, {digest}"


def _status(code: int | None, tests: Outcomes | None) -> Status:
    """Return a part's status. If the exit code says passed, but none of its tests has passed, the part is skipped if
    tests were skipped, else failed.
    """
    status = status_of(code, tests=tests is not None)
    if status is not Status.PASSED or tests is None or tests.passed:
        return status
    return Status.SKIPPED if tests.skipped else Status.FAILED


def _reason(status: Status, ended: bounded.Ended, seconds: float, tests: Outcomes | None) -> str:
    if status is Status.PASSED:
        return ""
    if status is Status.SKIPPED and tests is not None:
        return Counter(tests.skipped.values()).most_common(1)[0][0]
    if status is Status.STOPPED:
        return f"not done within {seconds:.0f} s: call again to resume" if tests else f"not done within {seconds:.0f} s"
    if tests is not None and tests.failed:
        return ", ".join(sorted(tests.failed)[:5]) + (", ..." if len(tests.failed) > 5 else "")
    return ended.tail[-1] if ended.tail else f"it wrote nothing and ended with {ended.code}"


def _json(path: Path) -> Any:
    """Return a part's result, or None if it was stopped before the file was complete."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None


def _shown(command: Sequence[str]) -> str:
    """Return a command without absolute folders of this machine."""
    own = [text.replace(f"{sources.ROOT}{os.sep}", "") for text in command[1:]]
    return shlex.join(["python", *own])
