"""Runs the scenarios as separate processes, and collects their results."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

SCENARIOS = Path(__file__).resolve().parent.parent / "scenarios"
TEST_SECONDS = 2400
NOTHING_SELECTED = 5
"""pytest's exit code if `-k` selects no test."""
TURNS: tuple[tuple[tuple[str, ...], ...], ...] = (
    (("pool", "group_turns"), ("canary", "policies", "answers", "http_route"), ("many_models", "under_load", "kept")),
    (("groups", "group_inputs"), ("group_healing", "group_scaling")),
    (("gateway_abuse", "full_cluster"), ("operator_killed", "lease_deleted", "operator")),
    (("node_lost",), ("wake",), ("scale_to_zero", "refusals")),
)
"""Parallel schedule: turns run one after another, the lanes of a turn in parallel, and the scenarios of a lane one
after another.

Scenarios in no turn break something that all others need (the API server, both nodes' pods, the release), and run alone
at the end. The first two turns break nothing shared. Groups of pods are placed one at a time, so those that find no
nodes would delay the second turn: they are in the first. In the third turn, the operator is repeatedly away: serving
does not need it, but rollouts wait for it. In the fourth, a node is lost: scenarios in parallel stay on the other one,
and need one gateway.
"""


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a test: `outcome` is passed, failed or skipped, `seconds` its duration, `reason` why it did not
    pass.
    """

    scenario: str
    test: str
    outcome: str
    seconds: float
    reason: str = ""


def names() -> list[str]:
    """Return the names of all scenarios, sorted."""
    return [file.stem.removeprefix("test_") for file in sorted(SCENARIOS.glob("test_*.py"))]


def choose(wanted: Sequence[str]) -> list[str]:
    """Return the scenarios that the words select: each word selects the scenario of this name, else those whose names
    contain it. No words select all. Raises ValueError for a word without a match.
    """
    for word in wanted:
        if not any(word in name for name in names()):
            raise ValueError(f"unknown scenario {word}; choose from: {', '.join(names())}")
    return [name for name in names() if not wanted or any(_is_meant(word, name) for word in wanted)]


def _is_meant(word: str, name: str) -> bool:
    return name == word if word in names() else word in name


def turns(chosen: Sequence[str], *, beside: bool) -> list[list[list[str]]]:
    """Return the order of execution of the chosen scenarios: turns that run one after another, each a list of parallel
    lanes, each a list of scenarios. Without `beside`, each scenario is a turn of its own.
    """
    wanted = [[[name for name in lane if name in chosen] for lane in turn] for turn in TURNS] if beside else []
    together = [[lane for lane in turn if lane] for turn in wanted if any(turn)]
    placed = {name for turn in together for lane in turn for name in lane}
    return [*together, *([[name]] for name in chosen if name not in placed)]


def run(
    prefix: Sequence[str],
    scenario: str,
    extra: Sequence[str],
    environment: Mapping[str, str],
    *,
    at_the_end: bool = False,
) -> list[Result]:
    """Run one scenario's tests with pytest. If pytest fails but no test does, as after a crash, the results get a
    failed test `(all)`.

    `prefix`: command prefix that reaches the cluster's network. `extra`: more arguments of pytest. Output is printed as
    it arrives, or `at_the_end` if other scenarios print too.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", str(SCENARIOS / f"test_{scenario}.py"), "-p", "no:cacheprovider"]
        options = [f"--timeout={TEST_SECONDS}", f"--junitxml={report}"]
        began = time.monotonic()
        line = [*prefix, *command, *options, *extra]
        output = subprocess.PIPE if at_the_end else None
        done = subprocess.run(line, check=False, env=dict(environment), stdout=output, stderr=output, text=True)
        code = done.returncode
        print(done.stdout or "", done.stderr or "", sep="", end="", flush=True)
        results = parse(scenario, report.read_text()) if report.exists() else []
    if code not in (0, NOTHING_SELECTED) and all(r.outcome != "failed" for r in results):
        reason = f"pytest ended with {code}"
        results.append(Result(scenario, "(all)", "failed", round(time.monotonic() - began, 1), reason))
    return results


def parse(scenario: str, report: str) -> list[Result]:
    """Parse pytest's JUnit report. A test that failed in its call and teardown appears twice, and is returned once."""
    found: dict[str, Result] = {}
    for case in ElementTree.fromstring(report).iter("testcase"):
        failure = next((case.find(kind) for kind in ("failure", "error") if case.find(kind) is not None), None)
        skip = case.find("skipped")
        outcome = "failed" if failure is not None else "skipped" if skip is not None else "passed"
        told = failure if failure is not None else skip
        reason = " ".join((told.get("message") or "").split()) if told is not None else ""
        name = case.get("name", "")
        if name not in found or found[name].outcome != "failed":
            found[name] = Result(scenario, name, outcome, round(float(case.get("time", 0)), 1), reason)
    return list(found.values())


def summary(results: Sequence[Result], took: Mapping[str, float], seconds: float) -> str:
    """Return text with a line for each test and each scenario, the total, and why tests did not pass. `took`: scenario
    -> seconds; `seconds`: in total.
    """
    lines = [f"{r.outcome:8}{r.seconds:7.0f} s  {r.scenario}: {r.test}" for r in results]
    scenarios = [f"{seconds:15.0f} s  {name}" for name, seconds in sorted(took.items(), key=lambda item: -item[1])]
    reasons = [f"  {r.scenario}: {r.test}\n    {r.reason[:400]}" for r in results if r.outcome != "passed"]
    counted = Counter(r.outcome for r in results)
    told = ", ".join(f"{number} {outcome}" for outcome, number in sorted(counted.items()))
    total = f"{told or 'no test ran'} in {seconds:.0f} s"
    parts = [
        lines,
        ["Scenarios, the longest first:", *scenarios] if took else [],
        ["Why not:", *reasons] if reasons else [],
    ]
    return "\n".join(line for part in parts if part for line in (*part, "")) + f"\ne2e: {total}"


def as_records(results: Sequence[Result], figures: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return results with the figures of their tests, for a file."""
    return [asdict(r) | {"figures": figures.get(f"test_{r.scenario}.py::{r.test}")} for r in results]


def merged(before: Mapping[str, Any], run: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Replace older results of the same scenarios in a file's content. `before` and the result are by scenario, each
    with the provenance of its run.
    """
    new: dict[str, Any] = {}
    for record in records:
        new.setdefault(record["scenario"], {"run": dict(run), "results": []})["results"].append(dict(record))
    return dict(sorted({**before, **new}.items()))
