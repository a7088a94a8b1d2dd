"""Measures the working tree and a commit alternately, and computes ratios with confidence intervals: `bench.py
--against COMMIT`.

Each serving workload has one process per tree, which stays loaded; the benchmark `overhead` starts a process in each
round. A ratio is the commit's time over the working tree's: above 1 the working tree is faster.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.console import Console

import options
import tables
from against.tree import WORKING_TREE, Tree, UnknownCommit, other_dependencies, tree_of
from options import Options
from question import QuestionFailed, ask
from serving import quiet
from serving.pool import Pool
from serving.run import LINES
from serving.worker import SystemFailed
from serving.workloads import workload

OVERHEAD = "overhead"
USUAL = ("W1", "W2", "W4", "D1", OVERHEAD)
LEAST = 0.97
"""Minimum for the lower end of a ratio's interval: no workload may have become more than 3 % slower."""
CONFIDENCE = 0.95
Round = Callable[[int], float]
"""Runs the round with this number and returns its time: seconds of a serving workload, milliseconds of `overhead`."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Geometric mean of ratios, and the ends of its confidence interval."""

    ratio: float
    lower: float
    upper: float


def run(commit: str, chosen: Options, console: Console) -> int:
    """Return 0 if no workload is slower than `LEAST` allows, 1 if one is, 2 for wrong arguments or a failed
    benchmark.
    """
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
        for file in other_dependencies(before):
            console.print(f"{file} differs: both trees run with the packages that are installed now")
        found = dict(_measured(names, (before, WORKING_TREE), chosen, console))
    except (UnknownCommit, QuestionFailed, SystemFailed) as error:
        console.print(str(error))
        return 2
    console.print(_table(before, found).rich())
    return 1 if any(each.lower < LEAST for each in found.values()) else 0


def _measured(
    names: Sequence[str], trees: tuple[Tree, Tree], chosen: Options, console: Console
) -> Iterator[tuple[str, Interval]]:
    """Yield each workload with its interval. Write the results after each, so that an interrupted run keeps them."""
    written: dict[str, Any] = {}
    for name in names:
        console.rule(name)
        rounds = _rounds(name, trees, chosen, console)
        found = interval_of([each["before"] / each["now"] for each in rounds])
        written[name] = {**asdict(found), "rounds": rounds}
        options.write(chosen, {"against": trees[0].commit, "least": LEAST, "workloads": written})
        yield name, found


def _rounds(name: str, trees: tuple[Tree, Tree], chosen: Options, console: Console) -> list[dict[str, float]]:
    """Return the times of each round of one workload: `before` of the commit, `now` of the working tree. The tree that
    runs first changes from round to round.
    """
    rounds = []
    with ExitStack() as stack:
        timed = [stack.enter_context(_timed(name, tree, chosen)) for tree in trees]
        for number in range(1, chosen.rounds + 1):
            cores = quiet.cores_in_use()
            if (complaint := quiet.complaint(cores)) is not None:
                console.print(complaint)
            taken = {index: timed[index](number) for index in ((0, 1) if number % 2 else (1, 0))}
            rounds.append({"before": taken[0], "now": taken[1], "cores_used_by_others": round(cores, 2)})
            console.print(f"{name} round {number}: {taken[0] / taken[1]:.3f}")
    return rounds


@contextmanager
def _timed(name: str, tree: Tree, chosen: Options) -> Iterator[Round]:
    if name == OVERHEAD:
        yield lambda number: _overhead(tree, chosen)
        return
    work, [us, *_] = workload(name, chosen.scale, 1), LINES[name]
    with Pool(chosen.threads, tree.environment) as pool:
        yield lambda number: float(pool.run(us, work, chosen.scale, number)["seconds"])


def _overhead(tree: Tree, chosen: Options) -> float:
    """Return the milliseconds of a greedy step of 64 sequences without the model."""
    return float(ask("overhead", (), replace(chosen, rounds=1), tree.environment)["ms"]["greedy"]["overhead"])


def interval_of(ratios: Sequence[float]) -> Interval:
    """Return the geometric mean of ratios with its confidence interval (Student's t of their logarithms, at
    CONFIDENCE). Raises ValueError for fewer than two ratios.
    """
    if len(ratios) < 2:
        raise ValueError(f"{len(ratios)} ratio has no interval: measure two rounds or more")
    from scipy import stats

    logs = [math.log(ratio) for ratio in ratios]
    mean, error = statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
    half = error * float(stats.t.ppf((1 + CONFIDENCE) / 2, len(logs) - 1))
    return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def _table(before: Tree, found: dict[str, Interval]) -> tables.Sheet:
    rows = [
        [
            name,
            f"{each.ratio:.3f}",
            f"{each.lower:.3f}",
            f"{each.upper:.3f}",
            "met" if each.lower >= LEAST else "missed",
        ]
        for name, each in found.items()
    ]
    title = f"How many times as fast as {before.commit[:12]} (goal: the lower end is {LEAST} or more)"
    return tables.Sheet(title, ["workload", "ratio", "lower end", "upper end", "goal"], rows)
