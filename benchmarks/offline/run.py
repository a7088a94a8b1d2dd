"""`python -m offline.run`: `LLM.generate` over short requests (32 in, 8 out), compared with HTTP clients of Plimsoll's
server.

On "small" 64 clients send requests, on "tiny" 8; each gets complete responses, not streams, and sends the next request
immediately. After the rounds `LLM.generate` gets 10,000 requests in one call, to check that time is linear and memory
flat.
"""

from __future__ import annotations

import random
import statistics
import sys
from typing import Any

import question
from offline import memory
from options import Options
from serving import models, quiet, roofline
from serving.models import Shape
from serving.systems.plimsoll import PlimsollOffline, PlimsollServer
from serving.workloads import FIRST_TOKEN, Request, Workload
from tables import Sheet

PROMPT, OUTPUT = 32, 8
MANY, PER_ROUND, OVER_HTTP = 10_000, 2_000, 1_000
CLIENTS = {models.SMALL: 64, models.TINY: 8}


def measure(chosen: Options) -> dict[str, Any]:
    """Measure both models."""
    return {"models": {shape.name: _measure(shape, clients, chosen) for shape, clients in CLIENTS.items()}}


def _measure(shape: Shape, clients: int, chosen: Options) -> dict[str, Any]:
    """Return requests per second in both ways, and the time per request and peak memory of 10,000 requests at once
    relative to 2,000.
    """
    model = models.source(shape)
    offline = PlimsollOffline(shape, model, chosen.threads)
    server = PlimsollServer(shape, model, chosen.threads)
    try:
        offline.run(work(shape, max(8, round(PER_ROUND * chosen.scale)), 0))
        server.batch(work(shape, clients, 0).requests, clients)
        rounds = [_round(shape, offline, server, clients, n, chosen) for n in range(1, chosen.rounds + 1)]
        before = statistics.median(r["peak_bytes"] for r in rounds)
        many = work(shape, round(MANY * chosen.scale), chosen.rounds + 1)
        memory.forget_peak()
        seconds = offline.run(many)["seconds"]
        peak = memory.peak_bytes()
    finally:
        server.close()
        offline.close()
    speed = statistics.median(r["offline_per_second"] for r in rounds)
    return {
        "clients": clients,
        "ratio": statistics.median(r["ratio"] for r in rounds),
        "of_roofline": statistics.median(r["of_roofline"] for r in rounds),
        "offline_per_second": speed,
        "http_per_second": statistics.median(r["http_per_second"] for r in rounds),
        "many": len(many.requests),
        "many_per_second": len(many.requests) / seconds,
        "linearity": seconds / len(many.requests) * speed,
        "memory_growth": peak / before - 1,
        "rounds": rounds,
    }


def table(result: dict[str, Any]) -> Sheet:
    """Return a row for each model."""
    headings = ["model", "LLM.generate /s", "over HTTP /s", "ratio", "of roofline", "10,000 /s", "time", "memory"]
    rows = [
        [
            f"{name}, {r['clients']} clients",
            f"{r['offline_per_second']:.0f}",
            f"{r['http_per_second']:.0f}",
            f"{r['ratio']:.2f}x",
            f"{r['of_roofline']:.0%}",
            f"{r['many_per_second']:.0f}",
            f"{r['linearity']:.2f}x",
            f"{r['memory_growth']:+.1%}",
        ]
        for name, r in result["models"].items()
    ]
    note = "time, memory: time per request and peak memory with 10,000 requests in one call, relative to 2,000."
    return Sheet("Short requests per second (32 tokens in, 8 out), medians", headings, rows, note)


def _round(
    shape: Shape, offline: PlimsollOffline, server: PlimsollServer, clients: int, number: int, chosen: Options
) -> dict[str, float]:
    busy = quiet.cores_in_use()
    machine = roofline.measure(chosen.threads)
    mine = work(shape, max(8, round(PER_ROUND * chosen.scale)), number)
    theirs = work(shape, max(8, round(OVER_HTTP * chosen.scale)), -number)
    memory.forget_peak()
    seconds = offline.run(mine)["seconds"]
    peak = memory.peak_bytes()
    offline_speed = len(mine.requests) / seconds
    http_speed = len(theirs.requests) / server.batch(theirs.requests, clients)
    return {
        "offline_per_second": offline_speed,
        "http_per_second": http_speed,
        "ratio": offline_speed / http_speed,
        "of_roofline": roofline.floor_seconds(mine, machine) / seconds,
        "gemm_gflop_s": round(machine.flops / 1e9),
        "peak_bytes": peak,
        "cores_used_by_others": round(busy, 2),
    }


def work(shape: Shape, count: int, seed: int) -> Workload:
    """Return `count` short requests, different for each seed."""
    rng = random.Random(f"{shape.name} {seed}")
    prompts = (tuple(rng.randrange(FIRST_TOKEN, shape.vocab) for _ in range(PROMPT)) for _ in range(count))
    return Workload("offline", "short requests", tuple(Request(prompt, OUTPUT) for prompt in prompts), shape=shape)


if __name__ == "__main__":
    sys.exit(question.main(__doc__, measure, table))
