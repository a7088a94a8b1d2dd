"""`PYTHONPATH=benchmarks python -m scaling.run`: device-hours for a day of requests, and which policies meet a latency
target.

The scaler is the operator's own, with simulated gateway metrics and replicas. `--docs` writes the figures into
docs/tasks/scaling.md and the picture next to it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import tables
from placement.run import with_figures
from plimsoll_operator.simulation.commands import percentile
from plimsoll_operator.spec.scaling import Scaling, Target
from provenance import provenance
from scaling.day import HOUR, Day
from scaling.picture import draw
from scaling.policies import Fixed, Hpa, ScalerPolicy
from scaling.replica import Device
from scaling.service import Policy, Service, SimulationResult
from tables import Sheet

ROOT = Path(__file__).parents[2]
DOCUMENT, PICTURE = ROOT / "docs/tasks/scaling.md", ROOT / "docs/tasks/scaling.svg"
BEGIN, END = "<!-- figures: made by scaling.run -->", "<!-- figures: end -->"
START, TTFT, MOST, HPA_TARGET = 45.0, 0.8, 12, 8.0
"""Seconds until a replica has started, the target, maxReplicas, and the HPA's target of requests in flight per
replica.
"""


def main(words: Sequence[str] | None = None) -> int:
    """Simulate, print and write."""
    args = _arguments(words)
    day = Day(hours=args.hours)
    policies = compare(day, args.rounds)
    courses = policies.pop("courses")
    tables.console().print(sheet(policies).rich())
    if args.json:
        run = provenance() | {"command": " ".join(["python -m scaling.run", *sys.argv[1:]])}
        shape = {"start": START, "ttft": TTFT, "most": MOST, "device": repr(Device()), "day": repr(day)}
        args.json.write_text(
            json.dumps({"run": run, "rounds": args.rounds, **shape, "policies": policies}, indent=2) + "\n"
        )
    if args.docs:
        PICTURE.write_text(draw(courses, policies))
        DOCUMENT.write_text(with_figures(DOCUMENT.read_text(), sheet(policies).markdown(), BEGIN, END))
    return 0


def compare(day: Day, rounds: int) -> dict[str, Any]:
    """Return each policy's means over several days. `courses`: the first day with "plimsoll, from zero"."""
    made = [day.requests(seed) for seed in range(1, rounds + 1)]
    target = Target(queue=4, ttft=TTFT)
    policies: dict[str, Callable[[], Policy]] = {
        "plimsoll, from zero": lambda: ScalerPolicy(Scaling(0, MOST, target=target)),
        "plimsoll, one at least": lambda: ScalerPolicy(Scaling(1, MOST, target=target)),
        "HPA on requests in flight": lambda: Hpa(HPA_TARGET, MOST),
        "fixed, for the mean": lambda: Fixed(1),
        "fixed, between": lambda: Fixed(2),
        "fixed, for the peak": lambda: Fixed(4),
    }
    found: dict[str, Any] = {}
    first: dict[str, SimulationResult] = {}
    for name, policy in policies.items():
        outcomes = [Service(requests, policy(), START).run(day.hours * HOUR) for requests in made]
        first[name] = outcomes[0]
        found[name] = _figures(outcomes)
    found["courses"] = first["plimsoll, from zero"].course
    return found


def _figures(outcomes: Sequence[SimulationResult]) -> dict[str, float]:
    return {
        "attained": round(fmean(o.attained(TTFT) for o in outcomes), 4),
        "hours": round(fmean(o.busy / HOUR for o in outcomes), 1),
        "p50": round(fmean(percentile(o.first, 50) for o in outcomes), 3),
        "p99": round(fmean(percentile(o.first, 99) for o in outcomes), 3),
        "most": max(o.most for o in outcomes),
        "changes": round(fmean(o.changes for o in outcomes), 1),
        "requests": round(fmean(len(o.first) for o in outcomes)),
    }


def sheet(policies: dict[str, Any]) -> Sheet:
    """Return a row for each policy."""
    rows = [
        [
            name,
            f"{found['attained']:.2%}",
            f"{found['hours']:.1f}",
            f"{found['p50']:.2f} / {found['p99']:.1f}",
            f"{found['most']:.0f}",
            f"{found['changes']:.0f}",
        ]
        for name, found in policies.items()
    ]
    requests = next(iter(policies.values()))["requests"]
    title = f"A day of {requests:,} requests, {TTFT:g} s to the first token, {START:.0f} s to start"
    headings = ["replicas", "within the target", "device-hours", "first token p50 / p99, s", "most", "changes"]
    return Sheet(title, headings, rows)


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scaling.run", description="What scaling costs and keeps over a day.")
    parser.add_argument("--hours", type=float, default=24.0, help="of the day (default %(default)s)")
    parser.add_argument(
        "--rounds", type=int, default=3, help="number of simulated days for the means (default %(default)s)"
    )
    parser.add_argument("--json", type=Path, help="write the result there")
    parser.add_argument("--docs", action="store_true", help="write docs/tasks/scaling.md and docs/tasks/scaling.svg")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
