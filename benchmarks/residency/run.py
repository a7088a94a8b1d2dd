"""`PYTHONPATH=benchmarks python -m residency.run`: simulates a day on one device, with the planner and with plain LRU.

The planner and the ledgers are the runtime's own; loading, waking and answering take the times in `traces`. The results
are seconds of loading, and waiting times of requests.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from plimsoll_runtime.residency.planner.eviction import make_room
from plimsoll_runtime.residency.planner.plan import plan
from plimsoll_runtime.residency.settings import Settings
from provenance import provenance
from residency.lru import lru_images, plan_lru
from residency.traces import GIB, TRACES, Arrival, models
from residency.world import ImageRoom, Model, Planner, World, memory_of

PLANNERS: dict[str, tuple[Planner, ImageRoom]] = {"plimsoll": (plan, make_room), "lru": (plan_lru, lru_images)}
LINE, SLEEPERS = 40 * GIB, 48 * GIB
"""Bytes of the device for grants, and of host memory for images. The sixteen models take 157 GiB awake: four times the
line.
"""
AT_ONCE_SECONDS = 1.0


def main(words: Sequence[str] | None = None) -> int:
    """Simulate, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=3, help="simulated days of each kind, each with its own seed")
    parser.add_argument("--first-seed", type=int, default=0, help="of the first day; the others follow it")
    parser.add_argument(
        "--minimum-residency", type=float, metavar="S", help="seconds of minimum residency (default: the host's)"
    )
    parser.add_argument("--only", action="append", choices=TRACES, help="kinds of days")
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args(words)
    table = Table("day", "planner", "loading", "wakes", "from disk", "wait mean", "wait p99", "longest", "a plan")
    results: dict[str, dict[str, Any]] = {}
    settings = Settings() if args.minimum_residency is None else Settings(minimum_residency=args.minimum_residency)
    for name in args.only or TRACES:
        results[name] = {}
        for planner, (decide, image_room) in PLANNERS.items():
            seeds = range(args.first_seed, args.first_seed + args.days)
            found = mean([day(name, seed, decide, image_room, settings) for seed in seeds])
            results[name][planner] = found
            table.add_row(
                name,
                planner,
                f"{found['loading_seconds']:.0f} s",
                f"{found['wakes']:.0f}",
                f"{found['loads']:.0f}",
                f"{found['wait_mean']:.2f} s",
                f"{found['wait_p99']:.1f} s",
                f"{found['wait_longest']:.0f} s",
                f"{1e3 * found['plan_seconds']:.2f} ms",
            )
    Console().print(table)
    if args.json:
        record = {
            **provenance(),
            "minimum_residency": settings.minimum_residency,
            "days": args.days,
            "line": LINE,
            "sleepers": SLEEPERS,
            "results": results,
        }
        args.json.write_text(json.dumps(record, indent=2) + "\n")
    return 0


def markdown(results: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """Return the rows of the table in docs/concepts/residency.md: loading, mean and longest wait, with the planner and
    with LRU.
    """
    rows = []
    for name, found in results.items():
        ours, lru = found["plimsoll"], found["lru"]
        cells = [f"{each['loading_seconds']:,.0f} s" for each in (ours, lru)]
        cells += [f"{each['wait_mean']:.1f} s" for each in (ours, lru)]
        cells += [f"{each['wait_longest']:.0f} s" for each in (ours, lru)]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(rows)


def day(trace: str, seed: int, decide: Planner, image_room: ImageRoom, settings: Settings) -> dict[str, float]:
    """Simulate one day of a trace, and return the figures of `simulate`."""
    return simulate(models(), TRACES[trace](random.Random(seed)), decide, image_room, settings)


def simulate(
    made: list[Model], arrivals: Iterable[Arrival], decide: Planner, image_room: ImageRoom, settings: Settings
) -> dict[str, float]:
    """Simulate these models and requests. Return the seconds of loading, waiting times, and counts of loads and wakes.
    Raises RuntimeError if a request is never answered.
    """
    spent = [0.0, 0]

    def timed(*arguments: Any) -> Any:
        began = time.perf_counter()
        found = decide(*arguments)
        spent[0] += time.perf_counter() - began
        spent[1] += 1
        return found

    world = World(made, memory_of(LINE, SLEEPERS), settings, timed, image_room)
    asked = 0
    for arrival in arrivals:
        world.at(arrival.at, partial(ask, world, arrival.model, arrival.seconds))
        asked += 1
    world.run()
    if len(world.waits) != asked:
        raise RuntimeError(f"{asked - len(world.waits)} of {asked} requests were never answered")
    waits = sorted(world.waits)
    return {
        "requests": asked,
        "loading_seconds": world.loading_seconds,
        "wakes": world.wakes,
        "loads": world.loads,
        "wait_mean": fmean(waits),
        "wait_p99": waits[int(0.99 * len(waits))],
        "wait_longest": waits[-1],
        "at_once": sum(wait < AT_ONCE_SECONDS for wait in waits) / asked,
        "plan_seconds": spent[0] / spent[1],
    }


def ask(world: World, model: int, seconds: float) -> None:
    """Add a request for the model with this index now; its response takes `seconds`."""
    world.arrive(list(world.models)[model], seconds)


def mean(days: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the mean of each figure; the longest wait is the maximum of all days."""
    found = {key: fmean(day[key] for day in days) for key in days[0]}
    return found | {"wait_longest": max(day["wait_longest"] for day in days)}


if __name__ == "__main__":
    sys.exit(main())
