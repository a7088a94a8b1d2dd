"""`PYTHONPATH=benchmarks python -m placement.gap`: why the pool of `placement.replay` pays more than the minimum.

Computes the minimum that any schedule of the same requests pays, adding the pool's constraints one by one, each under
the waiting times of this run: so each constraint has a cost, whatever the planner. The rest above the last one is due
to the planners, which do not know future requests. Each constraint is the pool's: responses take their time, and
engines take time to end; a model is on one host; nothing is loaded before a request; awake models stay for the minimum
residency.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from statistics import fmean
from typing import Any

import tables
from placement.hosted import Hosted
from placement.paging import ratio
from placement.program import Cost, Duties, Group, least
from placement.replay import ANSWER, DOCUMENT, HOSTS, MODELS, PACES, RESIDENCIES, ROOMS, begun, replay
from placement.run import with_figures
from plimsoll_runtime.residency.settings import Settings
from provenance import provenance
from residency.world import STOP_SECONDS
from tables import Sheet

BEGIN, END = "<!-- gap: made by placement.gap -->", "<!-- gap: end -->"
LEVELS = ("least", "engines", "borders", "on_demand", "stays")
"""In this order, each level adds its constraint to the previous ones."""


def main(words: Sequence[str] | None = None) -> int:
    """Simulate, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="seeds, whose means are shown (default 3)")
    parser.add_argument("--first-seed", type=int, default=0, help="of the first round; the others follow it")
    parser.add_argument("--seconds", type=float, default=60.0, help="of load at least (default 60)")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures with their provenance to this file"
    )
    parser.add_argument("--docs", action="store_true", help="write them into docs/concepts/placement.md")
    args = parser.parse_args(words)
    rows = []
    for pace, room, residency in product(PACES, ROOMS, RESIDENCIES):
        seeds = range(args.first_seed, args.first_seed + args.rounds)
        found = [measure(pace, room, residency, seed, args.seconds) for seed in seeds]
        means = {name: round(fmean(one[name] for one in found), 2) for name in found[0]}
        rows.append({"pace": pace, "room": room, "residency": residency, **means})
    known = popularity()
    found_sheet = sheet(rows, known)
    tables.console().print(found_sheet.rich())
    if args.json:
        record = {
            "run": provenance(),
            "rounds": args.rounds,
            "first_seed": args.first_seed,
            "known": known,
            "rows": rows,
        }
        args.json.write_text(json.dumps(record, indent=2) + "\n")
    if args.docs:
        DOCUMENT.write_text(with_figures(DOCUMENT.read_text(), found_sheet.markdown(), BEGIN, END))
    return 0


def measure(pace: str, room: int, residency: float, seed: int, seconds: float) -> dict[str, float]:
    """Return the seconds of loading that one run paid (`paid`), and the minimum by level (LEVELS)."""
    pool = replay(pace, room, seed, seconds, Settings(minimum_residency=residency))
    return {"paid": pool.seconds, **levels(pool, pace, room, residency)}


def levels(pool: Hosted, pace: str, room: int, residency: float) -> dict[str, float]:
    """Return the minimum that this pool could have paid for its requests, by level. Raises ValueError if a model has
    moved, because its host is then not constant.
    """
    if pool.moves:
        raise ValueError(f"{pool.moves} models have moved between hosts")
    cost, asked = Cost(*PACES[pace]), begun(pool)
    whole = [Group(frozenset(asked), room * len(pool.worlds))]
    hosts = [Group(frozenset(str(name) for name in host.models), room) for host in pool.worlds.values()]
    engines = Duties(answer=ANSWER, stop=STOP_SECONDS)
    on_demand = replace(engines, on_demand=True)
    stays = replace(on_demand, residency=residency)
    laid = ((whole, Duties()), (whole, engines), (hosts, engines), (hosts, on_demand), (hosts, stays))
    return {name: least(asked, groups, cost, duties) for name, (groups, duties) in zip(LEVELS, laid, strict=True)}


def popularity() -> dict[str, float]:
    """Return, by the number of models that fit into all hosts, the cost of the best rule that knows every popularity,
    relative to the minimum.
    """
    weights = [1 / (rank + 1) for rank in range(MODELS)]
    shares = [weight / sum(weights) for weight in weights]
    return {str(HOSTS * room): round(ratio(shares, HOSTS * room), 2) for room in ROOMS}


def sheet(rows: Sequence[dict[str, Any]], known: Mapping[str, float]) -> Sheet:
    """Return a row for each pool: the minimum, the cost of each constraint, and the planners' cost."""
    cells = []
    for row in rows:
        steps = [f"{row[after] - row[before]:.1f}" for before, after in pairwise(LEVELS)]
        pool = f"{row['pace']}, {row['room']} a host, {row['residency']:g} s"
        own = [f"{row['paid'] - row['stays']:.1f}", f"{row['paid'] / row['least']:.2f}"]
        own += [f"{row['paid'] / row['stays']:.2f}"]
        cells.append([pool, f"{row['paid']:.1f}", f"{row['least']:.1f}", *steps, *own])
    headings = ["pool", "paid", "least", "engines", "borders", "on demand", "residency", "planners"]
    headings += ["times the least", "with all duties"]
    times = ", ".join(f"{times:.2f} times with room for {room}" for room, times in known.items())
    note = (
        "Were no request to wait for another, the best rule that knows every popularity, but not the next request, "
        f"would pay in the long run, beside the least: {times}."
    )
    return Sheet("**gap**: seconds of loading above the least, by cause", headings, cells, note)


if __name__ == "__main__":
    sys.exit(main())
