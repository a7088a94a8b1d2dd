"""`PYTHONPATH=benchmarks python -m scheduling.run`: compares scheduling policies in generated traffic.

The scheduler is the engine's own; the duration of a step comes from a cost model, fitted to steps of the real engine
(`--fit` measures them again, in about 15 seconds). Times are those of the measured machine and model.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from plimsoll_runtime.engine.scheduler.policies import POLICIES
from provenance import provenance
from scheduling.columns import COLUMNS, cells, markdown
from scheduling.cost import CostModel, error, fit
from scheduling.picture import draw
from scheduling.report import Objective, figures, mean_of
from scheduling.simulate import INTERACTIVE_PRIORITY, Engine, simulate
from scheduling.traces import TRACES, Trace
from serving import quiet

ROOT = Path(__file__).parents[2]
COST_FILE = ROOT / "benchmarks/results/scheduling-cost.json"
DOCUMENT = ROOT / "docs/concepts/scheduling.md"
PICTURE = ROOT / "docs/concepts/scheduling.svg"
BEGIN, END = "<!-- figures: made by scheduling.run -->", "<!-- figures: end -->"
WIDTH = 170
SCATTER = 0.15
"""Maximum accepted median relative error of a fit: 0.08 and 0.09 on an idle machine, 0.27 on a busy one."""


def main(words: Sequence[str] | None = None) -> int:
    """Fit if requested, simulate, print and write."""
    args = _arguments(words)
    if args.fit and (complaint := _fit(args.threads)):
        print(complaint, file=sys.stderr)
        return 1
    engine = Engine(CostModel(**json.loads(COST_FILE.read_text())["cost"]))
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
    traces = []
    for trace in TRACES:
        if not args.only or trace.name in args.only:
            traces.append(_compare(engine, trace, args))
            console.print(_table(traces[-1]))
    if args.json:
        args.json.write_text(json.dumps(_result(engine, traces, args), indent=2) + "\n")
    if args.docs:
        PICTURE.write_text(draw(traces))
        DOCUMENT.write_text(with_figures(DOCUMENT.read_text(), markdown(traces)))
    return 0


def with_figures(document: str, table: str) -> str:
    """Return the document with new figures between its marks. Raises ValueError if it lacks the marks."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the document lacks the marks {BEGIN} and {END}")
    return f"{before}{begin}\n\n{table}\n\n{end}{after}"


def _compare(engine: Engine, trace: Trace, args: argparse.Namespace) -> dict[str, Any]:
    """Run all policies on the same requests, several times with different ones, and return the mean figures."""
    capacity = 1 / fmean(map(engine.seconds_in_crowd, trace.sample()))
    policies = {}
    for policy in POLICIES:
        runs = (simulate(engine, policy, trace.make(seed, args.requests, capacity)) for seed in range(args.rounds))
        policies[policy] = mean_of([figures(engine, run, Objective()) for run in runs]).as_dict()
    return {
        "name": trace.name,
        "title": trace.title,
        "requests_per_second": round(trace.load * capacity, 2),
        "policies": policies,
    }


def _result(engine: Engine, traces: list[dict[str, Any]], args: argparse.Namespace) -> dict[str, Any]:
    limits, objective = engine.limits(), Objective()
    return {
        **_provenance(),
        "rounds": args.rounds,
        "requests": args.requests,
        "engine": {
            "cost_from": str(COST_FILE.relative_to(ROOT)),
            "num_blocks": limits.num_blocks,
            "block_size": limits.block_size,
            "max_batch_tokens": limits.max_batch_tokens,
            "max_sequences": limits.max_sequences,
        },
        "objective": {"ttft_seconds": objective.ttft, "mean_itl_seconds": objective.gap},
        "interactive_priority": INTERACTIVE_PRIORITY,
        "traces": traces,
    }


def _fit(threads: int) -> str | None:
    """Measure the real engine and save the costs of its steps. If the machine is busy or the fit too inaccurate, save
    nothing and return the reason, else None.
    """
    from scheduling.measure import MODEL, measure

    before = quiet.complaint(quiet.cores_in_use())
    samples = measure(threads)
    after = quiet.complaint(quiet.cores_in_use())
    cost = fit(samples)
    scatter = error(cost, samples)
    scattered = f"half of the steps miss the fitted cost by more than {scatter:.0%}" if scatter > SCATTER else None
    if complaint := before or after or scattered:
        return f"{complaint}; {COST_FILE.name} is as it was: measure again when the machine is at rest"
    result = {
        **_provenance(),
        "model": MODEL.name,
        "threads": threads,
        "steps": len(samples),
        "median_error": round(scatter, 3),
        "cost": cost.as_dict(),
    }
    COST_FILE.write_text(json.dumps(result, indent=2) + "\n")
    return None


def _provenance() -> dict[str, Any]:
    return provenance() | {"command": " ".join(["python -m scheduling.run", *sys.argv[1:]])}


def _table(trace: dict[str, Any]) -> Table:
    table = Table(title=f"{trace['name']}: {trace['title']} ({trace['requests_per_second']} requests/s)")
    table.add_column("policy")
    for column in COLUMNS:
        table.add_column(column.heading, justify="right")
    for policy, shown in trace["policies"].items():
        table.add_row(policy, *cells(shown))
    return table


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="traces of each kind, whose means are shown (default 3)")
    parser.add_argument("--requests", type=int, default=2000, help="requests of a trace (default 2000)")
    parser.add_argument("--only", action="append", metavar="TRACE", help="only this trace (repeatable)")
    parser.add_argument("--fit", action="store_true", help="measure the engine's steps on this machine first")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of the measured engine")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures with their provenance to this file"
    )
    parser.add_argument("--docs", action="store_true", help="write them into docs/concepts/scheduling.md and .svg")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
