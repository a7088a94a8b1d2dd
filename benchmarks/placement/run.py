"""`PYTHONPATH=benchmarks python -m placement.run`: seconds of loading that placement costs in generated traffic.

The planner is the operator's own, in a simulated pool; it is compared with other rules and with a lower bound. `--docs`
writes the figures into docs/concepts/placement.md and the picture next to it.
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
from placement import planning
from placement.bound import lower_bound
from placement.goals import judge
from placement.ideal import popularity_known
from placement.informed import Informed
from placement.picture import draw
from placement.policies import Lru, ModelMesh, Static
from plimsoll_operator.simulation.commands import percentile
from plimsoll_operator.simulation.placement_policy import PlannerPolicy
from plimsoll_operator.simulation.pool import Host, Policy, Pool, SimulationResult
from plimsoll_operator.simulation.trace import GIB, KINDS, Shape, Trace, make
from provenance import provenance
from tables import Sheet

BEGIN, END = "<!-- figures: made by placement.run -->", "<!-- figures: end -->"
ROOT = Path(__file__).parents[2]
DOCUMENT, PICTURE = ROOT / "docs/concepts/placement.md", ROOT / "docs/concepts/placement.svg"
HOSTS, LINE, SLEEPERS = 4, 80 * GIB, 40 * GIB
TITLES = {
    "zipf": "each request for itself, popularity as in Zipf's law",
    "shifting": "the same, and a sixth of the models changes places every half an hour",
    "bursty": "sessions of about twenty requests",
    "scan": "all models in turn, over and over",
}


def main(words: Sequence[str] | None = None) -> int:
    """Simulate, print and write. A missed goal is printed, but is not an error."""
    args = _arguments(words)
    console, shape = tables.console(), Shape(hours=args.hours)
    traces = []
    for kind in KINDS:
        if not args.only or kind in args.only:
            traces.append(compare(kind, shape, args.rounds))
            console.print(sheet(traces[-1]).rich())
    planned = planning.measure()
    verdicts = judge(traces, planned)
    rows = [[v["work"], v["goal"], v["figure"], "met" if v["met"] else "missed"] for v in verdicts]
    console.print(Sheet("Goals", ["work", "goal", "measured", "status"], rows, texts=2).rich())
    if args.json:
        run = provenance() | {"command": " ".join(["python -m placement.run", *sys.argv[1:]])}
        result = {
            "run": run,
            "rounds": args.rounds,
            "pool": _pool(shape),
            "traces": traces,
            "planning_seconds": planned,
        }
        args.json.write_text(json.dumps({**result, "verdicts": verdicts}, indent=2) + "\n")
    if args.docs:
        PICTURE.write_text(draw(traces))
        DOCUMENT.write_text(with_figures(DOCUMENT.read_text(), "\n\n".join(sheet(t).markdown() for t in traces)))
    return 0


def with_figures(document: str, text: str, first: str = BEGIN, last: str = END) -> str:
    """Return the document with new figures between its marks. Raises ValueError if it lacks the marks."""
    before, begin, rest = document.partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise ValueError(f"the document lacks the marks {first} and {last}")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"


def compare(kind: str, shape: Shape, rounds: int) -> dict[str, Any]:
    """Run all policies on the same traces, and return means over several seeds. The bound allows the planner's own
    longest wait.
    """
    made = [make(kind, shape, seed) for seed in range(rounds)]
    policies: dict[str, Callable[[Trace], Policy]] = {
        "plimsoll": lambda trace: PlannerPolicy(),
        "lru": lambda trace: Lru(),
        "modelmesh": lambda trace: ModelMesh(),
        "informed": Informed,
        "static": Static,
    }
    outcomes = {
        name: [Pool(trace, hosts(), policy(trace)).run() for trace in made] for name, policy in policies.items()
    }
    longest = [max(result.waits) for result in outcomes["plimsoll"]]
    bounds = [lower_bound(trace, hosts(), wait) for trace, wait in zip(made, longest, strict=True)]
    return {
        "name": kind,
        "title": TITLES[kind],
        "requests": round(fmean(len(trace.requests) for trace in made)),
        "policies": {name: _figures(found) for name, found in outcomes.items()},
        "bound": round(fmean(bounds), 1),
        "bound_without_waiting": round(fmean(lower_bound(trace, hosts(), 0.0) for trace in made), 1),
        "popularity_known": round(fmean(popularity_known(trace, hosts()) for trace in made), 1),
    }


def hosts() -> list[Host]:
    """Return the empty simulated pool."""
    return [Host(f"host-{number}", LINE, SLEEPERS) for number in range(HOSTS)]


def sheet(trace: dict[str, Any]) -> Sheet:
    """Return a row for each policy."""
    rows = [
        [
            name,
            f"{found['seconds']:,.0f}",
            f"{found['seconds'] / trace['bound']:.2f}",
            f"{found['loads']:.0f}",
            f"{found['wakes']:.0f}",
            f"{found['wait_p50']:.1f} / {found['wait_p99']:.1f} / {found['wait_most']:.1f}",
            f"{found['served']:.0%}",
        ]
        for name, found in trace["policies"].items()
    ]
    note = (
        f"The bound is {trace['bound']:,.0f} s ({trace['bound_without_waiting']:,.0f} s where no request may wait); a "
        f"memory without borders that knew every model's popularity would pay {trace['popularity_known']:,.0f} s."
    )
    headings = [
        "policy",
        "seconds of loading",
        "times the bound",
        "loads",
        "wakes",
        "wait p50 / p99 / most, s",
        "served",
    ]
    return Sheet(f"**{trace['name']}**: {trace['title']} ({trace['requests']:,} requests)", headings, rows, note)


def _figures(outcomes: Sequence[SimulationResult]) -> dict[str, float]:
    return {
        "seconds": round(fmean(result.seconds for result in outcomes), 1),
        "loads": round(fmean(result.loads for result in outcomes), 1),
        "wakes": round(fmean(result.wakes for result in outcomes), 1),
        "moves": round(fmean(result.moves for result in outcomes), 1),
        "served": round(fmean(result.served / result.requests for result in outcomes), 4),
        "wait_p50": round(fmean(percentile(result.waits, 50) for result in outcomes), 2),
        "wait_p99": round(fmean(percentile(result.waits, 99) for result in outcomes), 2),
        "wait_most": round(max(max(result.waits, default=0.0) for result in outcomes), 2),
    }


def _pool(shape: Shape) -> dict[str, float]:
    found = {"hosts": HOSTS, "line_gib": LINE / GIB, "sleepers_gib": SLEEPERS / GIB, "models": shape.models}
    return found | {"hours": shape.hours, "requests_per_second": shape.rate}


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="traces of each kind, whose means are shown (default 3)")
    parser.add_argument("--hours", type=float, default=2.0, help="of each trace (default 2)")
    parser.add_argument("--only", action="append", choices=list(KINDS), help="only this trace (repeatable)")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures with their provenance to this file"
    )
    parser.add_argument("--docs", action="store_true", help="write them into docs/concepts/placement.md and .svg")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
