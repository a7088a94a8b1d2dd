"""`python -m gpu.sanitizer`: NVIDIA's compute-sanitizer on one small case of each op, each in its own process.

It is skipped, with the reason, if the program is missing or refuses the device.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from gpu.harness.part import SKIPPED

PROGRAM = "compute-sanitizer"
FOUND = 99
"""Exit code that the sanitizer is configured to return for findings."""
REFUSALS = ("Device not supported", "Unable to initialize", "is not supported on this")
UNCACHED = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
"""Makes each tensor a separate allocation, so that out-of-bounds accesses are detected."""
SECONDS, TAIL = 150, 12
AT_ONCE = 4

Run = Callable[[Sequence[str]], subprocess.CompletedProcess[str]]


@dataclass(frozen=True, slots=True)
class Finding:
    """Result for one op: "clean", "found" (something), "wrong" (numbers), "failed" (otherwise), "refused"."""

    op: str
    came: str
    tail: Sequence[str] = ()


def command(op: str) -> list[str]:
    """Return the command of the sanitizer on one case."""
    options = ["--tool", "memcheck", "--error-exitcode", str(FOUND), "--target-processes", "all"]
    return [PROGRAM, *options, sys.executable, "-m", "gpu.small_ops", op]


def finding(op: str, run: Run) -> Finding:
    """Run an op's case under the sanitizer."""
    try:
        ended = run(command(op))
    except subprocess.TimeoutExpired:
        return Finding(op, "failed", [f"it took longer than {SECONDS} s"])
    lines = [line for line in (ended.stdout + ended.stderr).splitlines() if line.strip()]
    came = {0: "clean", 1: "wrong", FOUND: "found"}.get(ended.returncode, "failed")
    if came != "clean" and any(text in line for line in lines for text in REFUSALS):
        came = "refused"
    return Finding(op, came, [] if came == "clean" else lines[-TAIL:])


def main(run: Run | None = None) -> int:
    """Return 0 if all are clean, 77 if the sanitizer is not available, else 1."""
    from gpu.small_ops import OPS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    if run is None and shutil.which(PROGRAM) is None:
        print(f"{PROGRAM} is not on the PATH")
        return SKIPPED
    findings: list[Finding] = []
    for found in _all(list(OPS), run or _run):
        findings.append(found)
        print(f"{found.op}: {found.came}", *found.tail, sep="\n  ", flush=True)
        if args.json:
            args.json.write_text(json.dumps([asdict(each) for each in findings], indent=2) + "\n", encoding="utf-8")
        if found.came == "refused":
            print(f"{PROGRAM} refuses the device: {found.tail[-1]}")
            return SKIPPED
    bad = [each.op for each in findings if each.came != "clean"]
    print(f"not clean: {', '.join(bad)}" if bad else f"{len(findings)} cases are clean")
    return 1 if bad else 0


def _all(ops: Sequence[str], run: Run) -> Iterator[Finding]:
    """Run the first case alone, because the sanitizer may refuse it, then several in parallel, because imports take
    most of the time. Results are in order.
    """
    yield finding(ops[0], run)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield from pool.map(lambda op: finding(op, run), ops[1:])


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env={**os.environ, **UNCACHED}, capture_output=True, text=True, timeout=SECONDS, check=False
    )


if __name__ == "__main__":
    sys.exit(main())
