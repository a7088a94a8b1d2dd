"""`make bench`: compares Plimsoll with the peers and the machine's limits, and lists goals that are met, missed or not
measured.

Every benchmark runs as a separate process. `--only` takes workloads (W1 to W4, W3p, D1, D16, W6) and benchmarks.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import against.run
import goals
import options
import tables
from options import Options
from provenance import processor_kind
from question import QuestionFailed, ask
from serving.run import LINES

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
QUESTIONS = (
    "overhead",
    "instructions",
    "offline",
    "batch",
    "prefix_cost",
    "constrained",
    "kv_waste",
    "startup",
    "loading",
    "sampling",
)


def main() -> int:
    """Run, print and write. Return 0 if no goal is missed, 1 if one is, 2 if a benchmark failed."""
    parser = options.parser(__doc__)
    parser.add_argument(
        "--record", action="store_true", help="write benchmarks/results/cpu-KIND.json, by kind of processor"
    )
    parser.add_argument(
        "--against", metavar="COMMIT", help="compare with an earlier commit instead of the peers, alternating rounds"
    )
    args = parser.parse_args()
    if args.against is not None:
        if args.record:
            parser.error("--record stores figures of the peers; use --against without it, and --json for a file")
        return against.run.run(args.against, options.from_arguments(args), tables.console())
    if args.record and (args.only or args.scale < 1 or args.json):
        parser.error("--record keeps whole runs, in a place of its own: give it without --only, --scale and --json")
    kind = processor_kind()
    if args.record:
        args.json = RESULTS / f"cpu-{kind}.json"
    chosen = _chosen(parser, args)
    console = tables.console()
    workloads: list[dict[str, Any]] = []
    questions: dict[str, dict[str, Any]] = {}
    verdicts: list[goals.Verdict] = []
    failed = []
    wanted = goals.of_kind(kind)
    console.print(f"Kind of processor: {kind}")
    for name, only in _plan(chosen.only):
        console.rule(" ".join((name, *only)))
        try:
            result = ask(name, only, chosen)
        except QuestionFailed as error:
            console.print(str(error))
            failed.append(" ".join((name, *only)))
        else:
            if name == "serving":
                workloads += result["workloads"]
            else:
                questions[name] = result
        verdicts = goals.judge(goals.Results(workloads, questions), wanted)
        # A run takes half an hour, so an interrupted one keeps its results.
        written = {"workloads": workloads, "questions": questions, "goals": [goals.record(v) for v in verdicts]}
        options.write(chosen, written)
    console.print(tables.goals([goals.record(v) for v in verdicts]).rich())
    if chosen.scale < 1:
        console.print(f"At scale {chosen.scale} this is a quick look; only results at scale 1 count.")
    if failed:
        console.print(f"Failed: {', '.join(failed)}")
        return 2
    return 1 if any(v.status is goals.Status.MISSED for v in verdicts) else 0


def _chosen(parser: argparse.ArgumentParser, args: argparse.Namespace) -> Options:
    known = (*LINES, *QUESTIONS)
    if unknown := sorted(set(args.only) - set(known)):
        parser.error(f"unknown benchmark or workload {', '.join(unknown)}; known: {', '.join(known)}")
    return options.from_arguments(args)


def _plan(only: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Return the benchmarks to run in order, each with its `--only` arguments: `serving` once for each workload, all
    others without arguments.
    """
    serving = [("serving", (name,)) for name in LINES if name in only or not only]
    return serving + [(name, ()) for name in QUESTIONS if name in only or not only]


if __name__ == "__main__":
    sys.exit(main())
