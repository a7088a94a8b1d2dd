"""`python -m against.run COMMIT`: the working tree and a commit take turns, and ratios with intervals come of it.

Each serving workload has one process a tree, which stays loaded; the overhead of a step is a process each round. A
ratio is the commit's time over the working tree's: above 1 the working tree is faster.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

import options
import tables
from against.interval import Interval, interval_of
from against.tree import Tree, UnknownCommit, other_dependencies, tree_of, working_tree
from options import Options
from serving import quiet
from serving.run import LINES
from serving.worker import Worker
from serving.workloads import workload

OVERHEAD = "overhead"
USUAL = ("W1", "W2", "W4", "D1", OVERHEAD)
LEAST = 0.97
"""What the lower end of a ratio's interval must reach: no workload may have become slower by more than this."""
WARM_UP_SCALE, WARM_UP_ROUND = 0.1, 0
Round = Callable[[int], float]
"""Seconds or milliseconds of a round, by its number."""


def main() -> int:
    """0 where no workload is slower than `LEAST` allows, else 1; 2 for wrong arguments."""
    parser = options.parser(__doc__)
    parser.add_argument("commit", metavar="COMMIT", help="what git knows it by")
    args = parser.parse_args()
    return run(args.commit, options.from_arguments(args), tables.console())


def run(commit: str, chosen: Options, console: Console) -> int:
    """See `main`."""
    known = (*LINES, OVERHEAD)
    names = chosen.only or USUAL
    if unknown := sorted(set(names) - set(known)):
        console.print(f"--against measures {', '.join(known)}, not {', '.join(unknown)}")
        return 2
    if chosen.rounds < 2:
        console.print(f"--rounds {chosen.rounds}: an interval needs two rounds or more")
        return 2
    try:
        before = tree_of(commit)
    except UnknownCommit as error:
        console.print(str(error))
        return 2
    for file in other_dependencies(before):
        console.print(f"{file} differs: both trees run with the packages that are installed now")
    found = {}
    for name in names:
        console.rule(name)
        found[name] = _measure(name, (before, working_tree()), chosen, console)
        options.write(chosen, {"against": before.commit, "least": LEAST, "workloads": found})
    console.print(_table(before, found).rich())
    return 1 if any(each["lower"] < LEAST for each in found.values()) else 0


def _measure(name: str, trees: tuple[Tree, Tree], chosen: Options, console: Console) -> dict[str, Any]:
    """Rounds of one workload, the trees in turns; who goes first changes from round to round."""
    rounds, ratios = [], []
    with ExitStack() as stack:
        ask = [stack.enter_context(_asked(name, tree, chosen)) for tree in trees]
        for number in range(1, chosen.rounds + 1):
            cores = quiet.cores_in_use()
            if (complaint := quiet.complaint(cores)) is not None:
                console.print(complaint)
            order = (0, 1) if number % 2 else (1, 0)
            taken = {index: ask[index](number) for index in order}
            ratios.append(taken[0] / taken[1])
            rounds.append({"before": taken[0], "now": taken[1], "cores_used_by_others": round(cores, 2)})
            console.print(f"{name} round {number}: {ratios[-1]:.3f}")
    found = interval_of(ratios)
    return {"ratio": found.mean, "lower": found.lower, "upper": found.upper, "rounds": rounds}


@contextmanager
def _asked(name: str, tree: Tree, chosen: Options) -> Iterator[Round]:
    if name == OVERHEAD:
        yield lambda number: _overhead(tree, chosen)
        return
    work = workload(name, chosen.scale, 1)
    with closing(Worker(LINES[name][0], work.shape, chosen.threads, tree.environment)) as worker:
        worker.run(name, min(chosen.scale, WARM_UP_SCALE), WARM_UP_ROUND)
        yield lambda number: float(worker.run(name, chosen.scale, number)["seconds"])


def _overhead(tree: Tree, chosen: Options) -> float:
    """Milliseconds of a greedy step of 64 sequences besides the model."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        command = [sys.executable, "-P", "-W", "ignore", "-m", "overhead.run", "--rounds", "1", "--json", str(answer)]
        command += ["--scale", str(chosen.scale), "--threads", str(chosen.threads)]
        subprocess.run(command, env=tree.environment, check=True, stdout=subprocess.DEVNULL)
        return float(json.loads(answer.read_text())["ms"]["greedy"]["overhead"])


def _table(before: Tree, found: dict[str, dict[str, Any]]) -> tables.Sheet:
    def row(name: str, each: dict[str, Any]) -> Sequence[str]:
        span = Interval(each["ratio"], each["lower"], each["upper"])
        verdict = "met" if span.lower >= LEAST else "missed"
        return [name, f"{span.mean:.3f}", f"{span.lower:.3f}", f"{span.upper:.3f}", verdict]

    title = f"How many times as fast as {before.commit[:12]} (goal: the lower end is {LEAST} or more)"
    return tables.Sheet(
        title, ["workload", "ratio", "lower end", "upper end", "goal"], [row(*item) for item in found.items()]
    )


if __name__ == "__main__":
    sys.exit(main())
