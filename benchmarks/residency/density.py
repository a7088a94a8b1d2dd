"""`PYTHONPATH=benchmarks python -m residency.density`: number of models that one device serves, compared with static
loading.

Static loading keeps models awake: it serves as many models as fit, the smallest first, and no other. Residency serves
all models, and some requests wait. Demand is that of `traces.zipf`, at one rate for all models together.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from plimsoll_runtime.residency.planner.eviction import make_room
from plimsoll_runtime.residency.planner.plan import plan
from plimsoll_runtime.residency.settings import Settings
from provenance import provenance
from residency.run import LINE, SLEEPERS, mean, simulate
from residency.traces import BILLIONS, models, zipf
from residency.world import Model

TIMES = (1, 2, 3, 4, 5)


def main(words: Sequence[str] | None = None) -> int:
    """Simulate, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=1, help="simulated days, each with its own seed")
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args(words)
    static = fit(models(), LINE)
    table = Table("models", "times static", "at once", "wait mean", "wait p99", "longest", "loading")
    found = []
    for times in TIMES:
        count = times * static
        each = mean([_day(count, seed) for seed in range(args.days)])
        found.append({"models": count, "times_static": times, **each})
        table.add_row(
            str(count),
            f"{times}x",
            f"{each['at_once']:.1%}",
            f"{each['wait_mean']:.1f} s",
            f"{each['wait_p99']:.0f} s",
            f"{each['wait_longest']:.0f} s",
            f"{each['loading_seconds']:.0f} s",
        )
    Console().print(f"Static loading serves {static} models of these sizes.")
    Console().print(table)
    if args.json:
        record = {**provenance(), "days": args.days, "line": LINE, "sleepers": SLEEPERS, "static": static}
        args.json.write_text(json.dumps({**record, "results": found}, indent=2) + "\n")
    return 0


def _day(count: int, seed: int) -> dict[str, float]:
    return simulate(models(count), zipf(random.Random(seed), count), plan, make_room, Settings())


def fit(made: Sequence[Model], line: int) -> int:
    """Return how many of the first sixteen models can be awake at once, the smallest first, each with its minimum KV
    cache.
    """
    left, count = line, 0
    for least in sorted(model.sizes.least for model in made[: len(BILLIONS)]):
        if least > left:
            break
        left, count = left - least, count + 1
    return count


if __name__ == "__main__":
    sys.exit(main())
