"""A process that has one system and runs requested workloads, and its client."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from serving.models import SHAPES, Shape
from serving.systems import SYSTEMS
from serving.workloads import Workload, workload

HERE = Path(__file__).resolve().parent.parent
LOG_TAIL = 2000


class SystemFailed(RuntimeError):
    """A system could not be loaded or ended during a round; `reason` is its last line of output."""

    def __init__(self, system: str, status: int, log: str) -> None:
        super().__init__(f"{system} ended with {status}:\n{log}")
        self.reason = (log.strip().splitlines() or [f"ended with {status}"])[-1]


class Worker:
    """One system in a child process."""

    def __init__(self, system: str, shape: Shape, threads: int, environment: Mapping[str, str] | None = None) -> None:
        """`environment`: variables that select another tree's sources; by default this one's."""
        entry = SYSTEMS[system]
        self._name = system
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (open as long as the process)
        command = [str(entry.python()), "-P", "-W", "ignore", "-m", "serving.worker", system, shape.name]
        given = os.environ | {"PYTHONPATH": str(HERE)} if environment is None else environment
        self._process = subprocess.Popen(
            [*command, entry.prepare(shape), str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**given, "OMP_NUM_THREADS": str(threads)},
        )
        try:
            self._answer()
        except BaseException:
            self.close()
            raise

    def run(self, name: str, scale: float, number: int) -> dict[str, Any]:
        """Run one round of a workload. Raises SystemFailed."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{name} {scale} {number}\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """End the child."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait(timeout=90)
        self._log.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            raise SystemFailed(self._name, self._process.wait(), self._log.read()[-LOG_TAIL:])
        answer: dict[str, Any] = json.loads(line)
        return answer


def main() -> None:
    """`python -m serving.worker SYSTEM SHAPE MODEL THREADS`: for each line "WORKLOAD SCALE ROUND" of the input, run
    that round and write its result as a line of JSON.
    """
    name, shape, model, threads = sys.argv[1:]
    # Redirect all output of libraries to the log, including output of native code.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    system = SYSTEMS[name].load(SHAPES[shape], model, int(threads))
    try:
        print(json.dumps({"ready": True}), file=answers, flush=True)
        for line in sys.stdin:
            print(json.dumps(system.run(_parse(line))), file=answers, flush=True)
    finally:
        system.close()


def _parse(line: str) -> Workload:
    name, scale, number = line.split()
    return workload(name, float(scale), int(number))


if __name__ == "__main__":
    main()
