"""`PYTHONPATH=benchmarks python -m placement.replay`: simulates the end-to-end tests' pool of eight models.

Two hosts with room for a number of models each, eight models of one size with Zipf popularity, and users who send one
request after another, as in e2e/scenarios/test_pool.py. The pool's loading cost is compared with two bounds: the
minimum of schedules of the same requests in which no request waits longer than here, and in which each may wait as long
as the longest did.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import defaultdict
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import tables
from placement.hosted import Hosted, Kind
from placement.program import Cost, Duties, Group, least
from placement.run import with_figures
from placement.schedules import lower_bound
from plimsoll_cluster.keys import ObjectKey
from plimsoll_operator.placement.records.model import Model, Need
from plimsoll_operator.simulation.commands import percentile
from plimsoll_operator.simulation.pool import Host
from plimsoll_operator.simulation.trace import Request, Trace
from plimsoll_runtime.residency.settings import Settings
from plimsoll_runtime.residency.sizes import Sizes
from provenance import provenance
from tables import Sheet

MIB = 2**20
SIZES = Sizes(image=15 * MIB, weights=15 * MIB, workspace=330 * MIB, kv_minimum=64 * MIB, kv_useful=128 * MIB)
PACES = {"quick": (0.6, 0.3), "slow": (5.6, 5.0)}
"""Seconds of a load and of a wake: of small models on CPUs, whose engines are forks, and ten times as much or more."""
ANSWER, PAUSE = 0.4, 0.1
"""Seconds of a response, and of a user's pause before the next request."""
SPARE, SLEEPERS = 100 * MIB, 256 * MIB
ROOMS, RESIDENCIES = (1, 2, 3), (2.0, 10.0)
"""Number of models per host (with one, all models need 3.2 times the hosts' memory), and seconds."""
MODELS, HOSTS, USERS, LEAST_ANSWERS = 8, 2, 3, 100
BEGIN, END = "<!-- pool: made by placement.replay -->", "<!-- pool: end -->"
ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs/concepts/placement.md"


def main(words: Sequence[str] | None = None) -> int:
    """Simulate, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="seeds, whose means are shown (default 3)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of load at least (default 60)")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures with their provenance to this file"
    )
    parser.add_argument("--docs", action="store_true", help="write them into docs/concepts/placement.md")
    args = parser.parse_args(words)
    rows = []
    for pace, room, residency in product(PACES, ROOMS, RESIDENCIES):
        settings = Settings(minimum_residency=residency)
        found = [measure(pace, room, seed, args.seconds, settings) for seed in range(args.rounds)]
        rows.append({"pace": pace, "room": room, "residency": residency, **mean(found)})
    console = tables.console()
    console.print(sheet(rows).rich())
    if args.json:
        args.json.write_text(json.dumps({"run": provenance(), "rounds": args.rounds, "rows": rows}, indent=2) + "\n")
    if args.docs:
        DOCUMENT.write_text(with_figures(DOCUMENT.read_text(), sheet(rows).markdown(), BEGIN, END))
    return 0


def replay(pace: str, room: int, seed: int, seconds: float, settings: Settings) -> Hosted:
    """Run the pool with users for `seconds`, and until as many requests are answered as e2e requires; return it."""
    kinds = [Kind(ObjectKey("e2e", f"tiny-{number}"), SIZES, *PACES[pace]) for number in range(MODELS)]
    pool = Hosted(kinds, HOSTS, room * SIZES.least + SPARE, SLEEPERS, settings)
    draw, weights = random.Random(seed), [1 / (rank + 1) for rank in range(MODELS)]

    def goes_on() -> bool:
        return pool.clock.now < seconds or len(pool.asked) < LEAST_ANSWERS

    def user() -> None:
        if goes_on():
            [kind] = draw.choices(kinds, weights)
            pool.ask(kind.key, ANSWER, lambda: pool.clock.at(pool.clock.now + PAUSE, user))

    for _ in range(USERS):
        pool.clock.at(0.0, user)
    pool.run(goes_on)
    return pool


def measure(pace: str, room: int, seed: int, seconds: float, settings: Settings) -> dict[str, float]:
    """Return the figures of one run, and the bounds for its requests."""
    pool = replay(pace, room, seed, seconds, settings)
    waits = [one.waited for one in sorted(pool.asked, key=lambda one: one.at)]
    asked = begun(pool)
    made, hosts = trace(pool), [Host(name, host.memory.device.line, SLEEPERS) for name, host in pool.worlds.items()]
    return {
        "requests": len(waits),
        "minutes": pool.clock.now / 60,
        "paid": pool.seconds,
        "loads": pool.loads,
        "wakes": pool.wakes,
        "moves": pool.moves,
        "bound": least(asked, [Group(frozenset(asked), HOSTS * room)], Cost(*PACES[pace]), Duties()),
        "patient_bound": lower_bound(made, hosts, max(waits)),
        "wait_p50": percentile(waits, 50),
        "wait_p99": percentile(waits, 99),
        "wait_most": max(waits),
    }


def begun(pool: Hosted) -> dict[str, list[tuple[float, float]]]:
    """Return, for each model, the arrival and the start of each of its requests in seconds."""
    asked: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for one in pool.asked:
        asked[str(one.model)].append((one.at, one.at + one.waited))
    return dict(asked)


def trace(pool: Hosted) -> Trace:
    """Return the pool's requests, for the bounds."""
    need = Need(SIZES.weights, SIZES.workspace, SIZES.kv_minimum, SIZES.image)
    models = tuple(Model(key, "1", (need,), load_seconds=k.load, wake_seconds=k.wake) for key, k in pool.kinds.items())
    requests = sorted((Request(one.at, one.model, one.seconds) for one in pool.asked), key=lambda request: request.at)
    return Trace("replay", models, tuple(requests))


def mean(found: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the mean of each figure; the longest wait is the maximum."""
    means = {name: round(fmean(one[name] for one in found), 2) for name in found[0]}
    return means | {"wait_most": round(max(one["wait_most"] for one in found), 2)}


def sheet(rows: Sequence[dict[str, Any]]) -> Sheet:
    """Return a row for each pool."""
    cells = [
        [
            f"{row['pace']}, {row['room']} model{'s' * (row['room'] > 1)} a host, residency {row['residency']:g} s",
            f"{row['paid']:.1f}",
            f"{row['paid'] / row['bound']:.2f}",
            f"{row['paid'] / row['patient_bound']:.2f}",
            f"{(row['loads'] + row['wakes']) / row['minutes']:.1f}",
            f"{row['wait_p50']:.1f} / {row['wait_p99']:.1f} / {row['wait_most']:.1f}",
        ]
        for row in rows
    ]
    headings = [
        "pool",
        "seconds of loading",
        "times the bound",
        "times the patient bound",
        "loads and wakes a minute",
        "wait p50 / p99 / most, s",
    ]
    return Sheet(
        f"**pool**: eight models in two hosts, {USERS} users ({rows[0]['requests']:.0f} requests)", headings, cells
    )


if __name__ == "__main__":
    sys.exit(main())
