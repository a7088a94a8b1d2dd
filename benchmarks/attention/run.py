"""`PYTHONPATH=benchmarks python -m attention.run`: milliseconds per layer of Plimsoll and SDPA, and the lower bound."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from attention.cases import CASES, Case
from attention.systems import LAYERS, dense, paged
from provenance import provenance
from serving.roofline import Machine, measure


def main() -> None:
    """Measure, print, and write the results."""
    args = _arguments()
    machine = measure(args.threads)
    chosen = [c for c in CASES if args.only in c.name]
    with torch.inference_mode():
        rows = [_measure(c, getattr(torch, d), machine, args.rounds) for d in args.dtype for c in chosen]
    Console().print(_table(rows))
    if args.json:
        limits = {
            "bandwidth_gb_s": round(machine.bandwidth / 1e9, 1),
            "bfloat16_gflop_s": round(machine.flops / 1e9),
        }
        result = {**provenance(), **limits, "threads": args.threads, "rounds": args.rounds, "cases": rows}
        Path(args.json).write_text(json.dumps(result, indent=2) + "\n")


def _measure(case: Case, dtype: torch.dtype, machine: Machine, rounds: int) -> dict[str, Any]:
    begin, ours = paged(case, dtype)
    theirs = dense(case, dtype)
    for warm in (begin, ours, theirs):
        warm()
    times: dict[str, list[float]] = {"begin": [], "paged": [], "sdpa": []}
    for _ in range(rounds):
        times["begin"].append(_milliseconds(begin))
        times["paged"].append(_milliseconds(ours) / LAYERS)
        times["sdpa"].append(_milliseconds(theirs) / LAYERS)
    bytes_read, flops = case.bytes(dtype.itemsize), case.flops
    return {
        "name": case.name,
        "dtype": str(dtype).removeprefix("torch."),
        "ms": {name: _percentiles(values) for name, values in times.items()},
        "floor_ms": round(1e3 * max(bytes_read / machine.bandwidth, flops / machine.flops), 4),
        "megabytes": round(bytes_read / 1e6, 2),
        "gflop": round(flops / 1e9, 3),
        "ratio_to_sdpa": round(statistics.median(b / a for a, b in zip(times["paged"], times["sdpa"], strict=True)), 2),
    }


def _milliseconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - start)


def _percentiles(values: list[float]) -> dict[str, float]:
    low, median, high = (statistics.quantiles(values, n=10, method="inclusive")[i] for i in (0, 4, 8))
    return {"p10": round(low, 4), "p50": round(median, 4), "p90": round(high, 4)}


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="Milliseconds a layer (begin: a step), p50 and p10; the floor in bfloat16's rate")
    for heading in ("case", "dtype", "begin", "paged", "dense SDPA", "SDPA / paged", "floor"):
        table.add_column(heading, justify="left" if heading in ("case", "dtype") else "right")
    for row in rows:
        cells = [f"{row['ms'][n]['p50']:.3f} {row['ms'][n]['p10']:.3f}" for n in ("begin", "paged", "sdpa")]
        table.add_row(row["name"], row["dtype"], *cells, f"{row['ratio_to_sdpa']:.2f}", f"{row['floor_ms']:.3f}")
    return table


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--dtype", action="append", choices=["bfloat16", "float32"])
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--json", metavar="FILE", help="write the result, with hardware, versions and command")
    args = parser.parse_args()
    args.dtype = args.dtype or ["bfloat16", "float32"]
    return args


if __name__ == "__main__":
    main()
