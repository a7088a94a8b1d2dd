"""`python -m batch.run`: `plimsoll batch` over short rows (32 tokens in, 8 out), compared with HTTP clients of the
server.

On "small" 64 clients send requests, on "tiny" 8; each gets complete responses and sends the next request immediately.
Then a long file on "tiny" checks that memory is flat. The time is from the first row to the last result, including
reading and writing files. Loading is not included; but the server has been warmed up and has touched the pages of its
cache (0.8 GB on "small", one to two CPU seconds), while the batch touches them during its rows. It has enough rows that
this hardly matters.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import question
from batch.command import run_batch
from offline.run import CLIENTS, work
from options import Options
from serving import models, quiet, roofline
from serving.models import Shape
from serving.systems.plimsoll import PlimsollServer
from serving.workloads import Request
from tables import Sheet

PER_ROUND = {models.SMALL: 4_000, models.TINY: 12_000}
OVER_HTTP = 1_000
LONG = 100_000
"""Rows of the long file; `batch.flat` runs a million rows."""
PIECE = 10_000


def measure(chosen: Options) -> dict[str, Any]:
    """Measure both models, then the long file."""
    return {"models": {shape.name: _measure(shape, clients, chosen) for shape, clients in CLIENTS.items()}} | {
        "long": _long(chosen)
    }


def _measure(shape: Shape, clients: int, chosen: Options) -> dict[str, Any]:
    """Return medians of the rows per second of `plimsoll batch` and over HTTP, and of the ratio of the first to the
    second.
    """
    model = models.source(shape)
    server = PlimsollServer(shape, model, chosen.threads)
    try:
        server.batch(work(shape, clients, 0).requests, clients)
        rounds = [_round(shape, model, server, clients, n, chosen) for n in range(1, chosen.rounds + 1)]
    finally:
        server.close()
    figures = ("ratio", "of_roofline", "batch_per_second", "http_per_second")
    return {
        "clients": clients,
        **{name: statistics.median(each[name] for each in rounds) for name in figures},
        "rounds": rounds,
    }


def _round(
    shape: Shape, model: str, server: PlimsollServer, clients: int, number: int, chosen: Options
) -> dict[str, float]:
    busy = quiet.cores_in_use()
    machine = roofline.measure(chosen.threads)
    mine = work(shape, max(8, round(PER_ROUND[shape] * chosen.scale)), number)
    theirs = work(shape, max(8, round(OVER_HTTP * chosen.scale)), -number)
    ran = run_batch(shape, model, chosen.threads, mine.requests)
    http = len(theirs.requests) / server.batch(theirs.requests, clients)
    return {
        "batch_per_second": ran.rows / ran.seconds,
        "http_per_second": http,
        "ratio": ran.rows / ran.seconds / http,
        "of_roofline": roofline.floor_seconds(mine, machine) / ran.seconds,
        "peak_bytes": ran.peak_bytes,
        "cores_used_by_others": round(busy, 2),
    }


def _long(chosen: Options) -> dict[str, Any]:
    """Run a tenth of the long file, then all of it. `memory_growth`: peak memory of all rows over that of the tenth,
    minus 1; `linearity`: time per row of all rows over that of the tenth.
    """
    shape, rows = models.TINY, round(LONG * chosen.scale)
    short, whole = (
        run_batch(shape, models.source(shape), chosen.threads, rows_of(shape, n)) for n in (rows // 10, rows)
    )
    return {
        "short": asdict(short),
        "whole": asdict(whole),
        "memory_growth": whole.peak_bytes / short.peak_bytes - 1,
        "linearity": whole.seconds / whole.rows * short.rows / short.seconds,
    }


def rows_of(shape: Shape, count: int) -> Iterator[Request]:
    """Yield `count` requests one by one; only PIECE of them are in memory at a time."""
    for start in range(0, count, PIECE):
        yield from work(shape, min(PIECE, count - start), 1000 + start).requests


def table(result: dict[str, Any]) -> Sheet:
    """Return a row for each model, and one for the long file."""
    headings = ["model", "plimsoll batch /s", "over HTTP /s", "ratio", "of roofline", "memory"]
    rows = [
        [
            f"{name}, {r['clients']} clients",
            f"{r['batch_per_second']:.0f}",
            f"{r['http_per_second']:.0f}",
            f"{r['ratio']:.2f}x",
            f"{r['of_roofline']:.0%}",
            "",
        ]
        for name, r in result["models"].items()
    ]
    long = result["long"]
    whole = long["whole"]
    rows.append(
        [
            f"tiny, {whole['rows']} rows",
            f"{whole['rows'] / whole['seconds']:.0f}",
            "",
            "",
            "",
            f"{long['memory_growth']:+.1%}",
        ]
    )
    note = "memory: the peak of all these rows relative to that of a tenth of them."
    return Sheet("Rows per second of `plimsoll batch` (32 tokens in, 8 out), medians", headings, rows, note)


if __name__ == "__main__":
    sys.exit(question.main(__doc__, measure, table))
