"""`make soak`: mixed load for a limited time on a real server over loopback, looking for leaks, drift and errors.

Arguments after `--` are passed to `plimsoll serve`, e.g. `--minutes 1 -- --attention-backend torch`. The exit status is
1 if anything is wrong, and the findings say what.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from provenance import provenance
from serving import models
from soak import client, verdict
from soak.growth import FEWEST, MIB, growth
from soak.load import Load, Tally, merged
from soak.server import Footprint, SoakedServer
from soak.traffic import Traffic

SETTLE_SECONDS = 30.0
WARM_UP_SHARE, WARM_UP_MOST = 0.25, 120.0
COUNTERS = {
    "steps": "plimsoll_engine_steps_total",
    "prompt_tokens": "plimsoll_prompt_tokens_total",
    "generated_tokens": "plimsoll_generated_tokens_total",
    "prefix_hit_tokens": "plimsoll_prefix_hit_tokens_total",
    "preemptions": "plimsoll_preemptions_total",
    "evictions": "plimsoll_evictions_total",
    "expired": "plimsoll_expired_total",
}


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a soak. `check_every`: steps between checks of the engine's records; `serve`: more options of
    `plimsoll serve`.
    """

    minutes: float
    model: str
    users: int
    threads: int
    policy: str
    check_every: int
    seed: int
    json: Path | None
    serve: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Soaked:
    """Results of warm-up and load, footprints of the idle processes `before` and `after` the load, the metrics after
    it, and the findings.
    """

    warm_up: Tally
    load: Tally
    before: Mapping[str, Footprint]
    after: Mapping[str, Footprint]
    metrics: Mapping[str, float]
    findings: list[str]


def main() -> int:
    """Soak, print and write. Return 0 if everything holds, else 1."""
    chosen = _options()
    shape = models.SHAPES[chosen.model]
    command = ["--policy", chosen.policy, "--threads", str(chosen.threads)]
    command += ["--check-integrity-every", str(chosen.check_every), *chosen.serve]
    server = SoakedServer(models.source(shape), shape.kv_bytes, command)
    try:
        soaked = asyncio.run(soak(server, chosen))
        findings = [*soaked.findings, *verdict.of_end(server.stop(), server.log.read_text(errors="replace"))]
        result = report(soaked, chosen, findings)
        if findings:
            print(server.tail(), file=sys.stderr)
    finally:
        if server.alive:
            server.stop()
        server.close()
    print(summary(result))
    if chosen.json is not None:
        chosen.json.parent.mkdir(parents=True, exist_ok=True)
        chosen.json.write_text(json.dumps(result, indent=2) + "\n")
    return 1 if findings else 0


async def soak(server: SoakedServer, chosen: Options) -> Soaked:
    """Warm up, measure the idle server, load it, measure again."""
    seconds = chosen.minutes * 60
    warm_seconds = min(WARM_UP_SHARE * seconds, WARM_UP_MOST)
    users = [Traffic(chosen.seed * 1000 + number, chosen.policy) for number in range(chosen.users)]
    warm_up, tally = Tally(), Tally()
    async with client.session() as session:
        load = Load(server, session, users)
        await load.learn(warm_up)
        await load.run(warm_seconds, warm_up, _show("warm-up", warm_seconds))
        before, _ = await _settle(server, None)
        await load.run(seconds - warm_seconds, tally, _show("load", seconds - warm_seconds))
        after, metrics = await _settle(server, before)
    if not metrics:
        return Soaked(warm_up, tally, before, after, {}, ["the server ended under the load", *tally.findings])
    findings = [
        *warm_up.findings,
        *tally.findings,
        *verdict.of_idleness(metrics),
        *verdict.of_reach(metrics),
        *verdict.of_checks(metrics, chosen.check_every),
        *verdict.of_memory(tally.readings),
        *verdict.of_handles(before, after, spare_threads=min(32, (os.cpu_count() or 1) + 4)),
    ]
    return Soaked(warm_up, tally, before, after, metrics, findings)


def report(soaked: Soaked, chosen: Options, findings: list[str]) -> dict[str, Any]:
    """Return the record for --json: provenance, settings, findings, outcomes, counters and memory."""
    tallies = (soaked.warm_up, soaked.load)
    return {
        "run": provenance(),
        "settings": {k: v for k, v in asdict(chosen).items() if k != "json"},
        "passed": not findings,
        "findings": findings,
        "wrong": sum(t.wrong for t in tallies),
        "requests": sum(t.requests for t in tallies),
        "tokens_received": sum(t.tokens for t in tallies),
        "probes_compared": sum(t.probes for t in tallies),
        "outcomes": merged([t.outcomes for t in tallies]),
        "engine": {name: soaked.metrics.get(series) for name, series in COUNTERS.items()},
        "memory": {name: _memory(soaked, name) for name in soaked.load.readings},
        "idle_before": {name: asdict(f) for name, f in soaked.before.items()},
        "idle_after": {name: asdict(f) for name, f in soaked.after.items()},
    }


def summary(result: Mapping[str, Any]) -> str:
    """Return the results as lines for the terminal: requests, memory, findings."""
    engine = ", ".join(f"{value:.0f} {name}" for name, value in result["engine"].items() if value is not None)
    lines = [
        f"{result['requests']} requests, {result['probes_compared']} probes compared; {engine}",
        *(
            f"{name}: {memory['start_mib']:.0f} to {memory['end_mib']:.0f} MiB, "
            f"{memory['late_rise_mib']:+.1f} MiB in the second half, peak +{memory['peak_mib']:.1f} MiB"
            for name, memory in result["memory"].items()
            if "late_rise_mib" in memory
        ),
        *(f"WRONG {finding}" for finding in result["findings"]),
        "passed" if result["passed"] else f"FAILED: {len(result['findings'])} findings",
    ]
    return "\n".join(lines)


def _memory(soaked: Soaked, name: str) -> dict[str, Any]:
    readings = soaked.load.readings[name]
    series = [[r.seconds, round(r.resident / MIB, 1)] for r in readings]
    judged: dict[str, Any] = {}
    if len(readings) >= FEWEST:
        found = growth(readings)
        judged = {
            "start_mib": series[0][1],
            "end_mib": series[-1][1],
            "late_rise_mib": round(found.over_half / MIB, 2),
            "rise_mib_per_hour": round(found.per_hour / MIB, 2),
            "peak_mib": round(found.peak / MIB, 2),
        }
    return {**judged, "most_threads": soaked.load.most_threads[name], "resident_mib": series}


async def _settle(
    server: SoakedServer, before: Mapping[str, Footprint] | None
) -> tuple[Mapping[str, Footprint], Mapping[str, float]]:
    """Return footprints and metrics of an idle server after it has closed the last clients' connections; no metrics if
    it has ended. The rules judge whatever is left after a while. Footprints are taken first, because reading metrics
    opens a connection.
    """
    deadline = time.monotonic() + SETTLE_SECONDS
    while server.alive:
        await asyncio.sleep(1)
        footprints, metrics = server.footprints(), server.metrics()
        held = [*verdict.of_idleness(metrics), *verdict.of_handles(before or {}, footprints, spare_threads=0)]
        if not held or time.monotonic() > deadline:
            return footprints, metrics
    return {}, {}


def _show(phase: str, seconds: float) -> Any:
    """Return a callback that updates one line of a terminal, and prints nothing elsewhere."""
    began = time.monotonic()

    def show(tally: Tally) -> None:
        if not sys.stderr.isatty():
            return
        resident = ", ".join(f"{name} {series[-1].resident / MIB:.0f} MiB" for name, series in tally.readings.items())
        line = f"{phase} {time.monotonic() - began:.0f} of {seconds:.0f} s: {tally.requests} requests, "
        line += f"{tally.tokens} tokens, {tally.probes} probes, {tally.wrong} wrong; {resident}"
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)

    return show


def _options() -> Options:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--minutes", type=float, default=60.0, help="how long (default %(default)g; 1 for trying)")
    parser.add_argument("--model", choices=("tiny", "small"), default="tiny", help="default: %(default)s")
    parser.add_argument("--users", type=int, default=24, help="requests at a time (default %(default)s)")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--threads", type=int, default=cores, help="computing threads of the engine")
    parser.add_argument("--policy", default="priority", help="of the scheduler (default %(default)s)")
    parser.add_argument("--check-every", type=int, default=1000, help="steps between checks of the engine's records")
    parser.add_argument("--seed", type=int, default=0, help="of the traffic (default %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result, with hardware, versions, command")
    parser.add_argument("serve", nargs="*", metavar="-- OPTION", help="more options of plimsoll serve")
    args = parser.parse_args()
    if not 0.5 <= args.minutes <= 24 * 60 or args.users < 1 or args.threads < 1 or args.check_every < 1:
        parser.error("--minutes must be 0.5 to 1440; --users, --threads and --check-every at least 1")
    return Options(
        args.minutes,
        args.model,
        args.users,
        args.threads,
        args.policy,
        args.check_every,
        args.seed,
        args.json,
        tuple(args.serve),
    )


if __name__ == "__main__":
    sys.exit(main())
