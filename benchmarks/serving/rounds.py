"""Runs the systems alternately on one workload, and measures the machine's limits in each round."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from options import Options
from serving import quiet, roofline
from serving.pool import Pool
from serving.worker import SystemFailed
from serving.workloads import Workload, workload

Say = Callable[[str], None]


def measure(name: str, systems: Sequence[str], pool: Pool, options: Options, say: Say) -> dict[str, Any]:
    """Run all rounds of a workload, and return its row. The first of `systems` is Plimsoll. A peer that fails is left
    out from then on.
    """
    rounds = []
    for number in range(1, options.rounds + 1):
        there = [s for s in systems if s not in pool.absent]
        rounds.append(_round(workload(name, options.scale, number), number, there, pool, options, say))
    absent = {s: pool.absent[s] for s in systems if s in pool.absent}
    return {**_summary(workload(name, options.scale, 1), systems[0], rounds), "absent": absent}


def _round(work: Workload, number: int, systems: list[str], pool: Pool, options: Options, say: Say) -> dict[str, Any]:
    cores = quiet.cores_in_use()
    if (complaint := quiet.complaint(cores)) is not None:
        say(complaint)
    machine = roofline.measure(options.threads)
    results: dict[str, Any] = {}
    for system in _turn(systems, number):
        try:
            results[system] = pool.run(system, work, options.scale, number)
        except SystemFailed as error:
            if system == systems[0]:
                raise
            say(str(error))
    us = systems[0]
    ratios = {s: r["seconds"] / results[us]["seconds"] for s, r in results.items() if s != us}
    say(f"{work.name} round {number}: " + (", ".join(f"{r:.2f}x {s}" for s, r in ratios.items()) or "no peer"))
    return {
        "systems": results,
        "ratios": ratios,
        "of_roofline": roofline.floor_seconds(work, machine) / results[us]["seconds"],
        "burst_bound_ms": 1000 * roofline.burst_seconds(work, machine) if work.users else None,
        "bandwidth_gb_s": round(machine.bandwidth / 1e9, 1),
        "gemm_gflop_s": round(machine.flops / 1e9),
        "cores_used_by_others": round(cores, 2),
    }


def _turn(systems: list[str], number: int) -> list[str]:
    """Return the order of systems, which changes from round to round."""
    shift = (number - 1) % len(systems)
    return systems[shift:] + systems[:shift]


def _summary(work: Workload, us: str, rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Return each system's medians over the rounds."""
    peers = sorted({s for r in rounds for s in r["ratios"]})
    speeds = {
        s: statistics.median(work.output_tokens / r["systems"][s]["seconds"] for r in rounds if s in r["systems"])
        for s in [us, *peers]
    }
    ratios = {s: statistics.median(r["ratios"][s] for r in rounds if s in r["ratios"]) for s in peers}
    return {
        "name": work.name,
        "title": work.title,
        "us": us,
        "prompt_tokens": sum(len(r.prompt) for r in work.requests),
        "output_tokens": work.output_tokens,
        "tokens_per_second": {s: round(speed, 1) for s, speed in speeds.items()},
        "ratios": {s: round(ratio, 3) for s, ratio in ratios.items()},
        "of_roofline": round(statistics.median(r["of_roofline"] for r in rounds), 3),
        "rounds": rounds,
    }
