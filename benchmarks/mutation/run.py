"""`python -m mutation.run`: which mutants `make test` kills, and which only `make test-long` does.

Three steps: --draw chooses the mutants and writes them into benchmarks/results/mutants.json, --record runs all tests
once to learn which of them reach each mutant (build/mutant-tests.json), and without either the tests that reach a
mutant are run with it, and the results' file gets the outcomes. Every step works on a copy of the committed
tree.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mutation.mutants import Mutant, draw, place_of, replaced
from provenance import provenance

ROOT = Path(__file__).resolve().parent.parent.parent
RESULT = ROOT / "benchmarks/results/mutants.json"
REACHING = ROOT / "build/mutant-tests.json"
"""The tests that reach each mutant, by --record."""
FOLDERS = (
    "runtime/plimsoll_runtime/engine",
    "kernels/plimsoll_kernels",
    "operator/plimsoll_operator",
    "operator/plimsoll_gateway",
)
SETS = ("not long", "long")
"""Marker expressions of `make test` and `make test-long`."""
PHASES = ("setup", "call", "teardown")
MUTANT_SECONDS = 300.0
"""Time limit for the tests of one set with one mutant; a mutant that reaches it counts as not killed. Tests that hang
fail by their own, shorter time limits, and so kill the mutant.
"""
ARGUMENTS_BYTES = 100_000
"""Maximum bytes of test names on one command line."""


@contextmanager
def copy() -> Iterator[Path]:
    """Yield the root of a temporary copy of the committed tree, with the compiled kernels of the working tree."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "tree"
        root.mkdir()
        archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x"], cwd=root, input=archive, check=True)
        for library in (ROOT / "kernels/plimsoll_kernels/cpu").glob("*.so"):
            (root / library.relative_to(ROOT)).write_bytes(library.read_bytes())
        yield root


def pytest(root: Path, *arguments: str, seconds: float | None = None) -> subprocess.CompletedProcess[str]:
    """Run pytest in a copy and return the ended process, whatever its status. Raise TimeoutExpired after `seconds`."""
    path = os.pathsep.join(str(root / name) for name in ("operator", "runtime", "kernels", "benchmarks"))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    environment = os.environ | {"PYTHONPATH": path}
    return subprocess.run(
        command, check=False, cwd=root, env=environment, text=True, stdout=subprocess.PIPE, timeout=seconds
    )


def collected(root: Path, *arguments: str) -> list[str]:
    """Return the names of the tests that pytest collects with these arguments, of all tests without arguments."""
    listed = pytest(root, "--collect-only", "-n0", *arguments).stdout
    return [line for line in listed.splitlines() if "::" in line]


def record(mutants: Sequence[Mutant], arguments: Sequence[str]) -> list[list[str]]:
    """Run all tests once; return for each mutant the tests that reach its place, also in processes they start."""
    with copy() as root, tempfile.TemporaryDirectory() as hits:
        for number, mutant in enumerate(mutants):
            text, place = place_of(mutant, root)
            original = text.encode()[place.start : place.end].decode()
            current = '__import__("os").environ.get("PYTEST_CURRENT_TEST", "").encode()'
            name = f'"{hits}/{number}/" + __import__("hashlib").md5({current}).hexdigest()'
            probe = f'(__import__("os").makedirs({name}, exist_ok=True) or ({original}))'
            (root / mutant.path).write_text(replaced(text, place, probe))
        tests = collected(root)
        run = pytest(root, "--dist", "loadfile", *arguments)
        print(run.stdout[-2000:])
        return [_reaching(tests, _names(Path(hits) / str(number))) for number in range(len(mutants))]


def _names(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir()} if folder.exists() else set()


def _reaching(tests: Sequence[str], names: set[str]) -> list[str]:
    """Return the tests that reach a place, by the `names` of recorded hits. If a test's setup reaches it, all tests of
    the same file count, because they may share a server that the setup started.
    """
    found = {test: [phase for phase in PHASES if _digest(test, phase) in names] for test in tests}
    shared = {test.partition("::")[0] for test, phases in found.items() if "setup" in phases}
    return [test for test, phases in found.items() if phases or test.partition("::")[0] in shared]


def _digest(test: str, phase: str) -> str:
    return hashlib.md5(f"{test} ({phase})".encode()).hexdigest()


def killed(root: Path, mutant: Mutant, tests: Sequence[str]) -> str | None:
    """Return pytest's line about the first test that fails with the mutant; None if no test fails within
    MUTANT_SECONDS.
    """
    text, place = place_of(mutant, root)
    file = root / mutant.path
    file.write_text(replaced(text, place, f"({mutant.after})"))
    words = _words(mutant.path.removesuffix(".py"))
    ordered = sorted(tests, key=lambda test: -len(words & _words(test.partition(".py::")[0])))  # likely killers first
    try:
        return _first_failure(root, ordered)
    finally:
        file.write_text(text)


def _words(path: str) -> set[str]:
    return set(path.replace("/", " ").replace("_", " ").split())


def _first_failure(root: Path, tests: Sequence[str]) -> str | None:
    ends = time.monotonic() + MUTANT_SECONDS
    while tests:
        size, count = 0, 0
        while count < len(tests) and size < ARGUMENTS_BYTES:
            size, count = size + len(tests[count]), count + 1
        try:
            run = pytest(root, "-x", "-n0", "--timeout=120", *tests[:count], seconds=max(ends - time.monotonic(), 1))
        except subprocess.TimeoutExpired:
            return None
        if run.returncode:
            failed = [line for line in run.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
            return failed[0].split(" - ")[0] if failed else run.stdout.strip().splitlines()[-1]
        tests = tests[count:]
    return None


def main() -> int:
    """Run a step. After the step that runs the mutants, return 1 if `make test` kills less than 90 % of the mutants
    that either set kills, else 0.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", type=int, metavar="COUNT", help="draw COUNT mutants, with --seed")
    parser.add_argument("--seed", type=int, default=34, help="for --draw (%(default)s)")
    parser.add_argument("--record", action="store_true", help="run all tests, to learn which of them reach each mutant")
    parser.add_argument("arguments", nargs="*", default=["-n", "3"], help="of pytest, for --record (%(default)s)")
    chosen = parser.parse_args()
    known: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    if chosen.draw is not None:
        drawn = draw(ROOT, FOLDERS, chosen.draw, chosen.seed)
        known = {"seed": chosen.seed, "mutants": [asdict(mutant) for mutant in drawn]}
    elif chosen.record:
        REACHING.parent.mkdir(exist_ok=True)
        REACHING.write_text(json.dumps(record(_mutants(known), chosen.arguments)))
        return 0
    else:
        known["run"] = provenance()
        known["killed_by"] = _outcomes(_mutants(known), json.loads(REACHING.read_text()))
    RESULT.write_text(json.dumps(known, indent=1) + "\n")
    return 0 if "killed_by" not in known else _verdict(known["killed_by"])


def _mutants(known: Mapping[str, Any]) -> list[Mutant]:
    return [Mutant(**each) for each in known["mutants"]]


def _outcomes(mutants: Sequence[Mutant], tests: Sequence[Sequence[str]]) -> list[dict[str, str | None]]:
    found: list[dict[str, str | None]] = []
    with copy() as root:
        sets = {marker: set(collected(root, "-m", marker)) for marker in SETS}
        for number, mutant in enumerate(mutants):
            outcome: dict[str, str | None] = {}
            for marker in SETS:
                outcome[marker] = killed(root, mutant, [test for test in tests[number] if test in sets[marker]])
                if outcome[marker] is not None:
                    break
            found.append(outcome)
            print(f"{mutant.path} {mutant.function}: {mutant.before} -> {mutant.after}: {outcome}", flush=True)
    return found


def _verdict(outcomes: Sequence[Mapping[str, str | None]]) -> int:
    short = sum(each.get(SETS[0]) is not None for each in outcomes)
    both = sum(any(outcome is not None for outcome in each.values()) for each in outcomes)
    print(f"{both} of {len(outcomes)} mutants are killed; make test kills {short}")
    return 0 if short >= 0.9 * both else 1


if __name__ == "__main__":
    sys.exit(main())
