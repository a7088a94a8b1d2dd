"""`make bench`: W1 to W4, us beside Transformers, taking turns in one run, with the roofline beside them."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from provenance import provenance
from serving import http_load, roofline
from serving.models import small_model
from serving.systems import SYSTEMS
from serving.workloads import Workload, workloads

HERE = Path(__file__).parent
US, PEER = "plimsoll", "transformers-static"


class Worker:
    """A child process that holds one loaded system."""

    def __init__(self, system: str, model: Path, threads: int, scale: float) -> None:
        command = [sys.executable, "-m", "serving.worker", system, str(model), str(threads), str(scale)]
        environment = os.environ | {"PYTHONPATH": str(HERE), "OMP_NUM_THREADS": str(threads)}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._answer()

    def run(self, workload: Workload) -> dict[str, Any]:
        """One round."""
        assert self._process.stdin is not None
        self._process.stdin.write(workload.name + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """End the child."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args!r} ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def main() -> int:
    """Measure, print the table, write the result; 1 when a goal is missed."""
    args = _arguments()
    if args.gpu and roofline.device().type != "cuda":
        print("bench: --gpu, and torch sees no GPU here", file=sys.stderr)
        return 2
    chosen = [w for w in workloads(args.scale) if not args.only or w.name in args.only]
    model, console = small_model(), Console()
    with contextlib.ExitStack() as stack:
        workers = {name: Worker(name, model, args.threads, args.scale) for name in SYSTEMS}
        for worker in workers.values():
            stack.callback(worker.close)
        url = stack.enter_context(http_load.server(model, args.threads)) if any(w.users for w in chosen) else ""
        rows = [_measure(w, workers, url, args, console) for w in chosen]
    console.print(_table(rows))
    result = {**provenance(), "model": "small", "rounds": args.rounds, "scale": args.scale, "workloads": rows}
    if args.json:
        Path(args.json).write_text(json.dumps(result, indent=2) + "\n")
    missed = [row["name"] for row in rows if row["ratio"] <= 1.0]
    if missed:
        console.print(f"Missed: {', '.join(missed)} do not beat {PEER}")
    return 1 if missed else 0


def _measure(
    workload: Workload, workers: dict[str, Worker], url: str, args: argparse.Namespace, console: Console
) -> dict[str, Any]:
    """Rounds of one workload: the systems in turn, the machine's limits probed before each round."""
    rounds = []
    for number in range(1, args.rounds + 1):
        machine = roofline.measure(args.threads)
        mine = http_load.run(workload, url, f"round {number}") if workload.users else workers[US].run(workload)
        theirs = workers[PEER].run(workload)
        floor = roofline.floor_seconds(workload, machine)
        rounds.append(
            {
                US: mine,
                PEER: theirs,
                "bandwidth_gb_s": round(machine.bandwidth / 1e9, 1),
                "gemm_gflop_s": round(machine.flops / 1e9),
                "ratio": theirs["seconds"] / mine["seconds"],
                "of_roofline": floor / mine["seconds"],
            }
        )
        console.print(f"{workload.name} round {number}: {rounds[-1]['ratio']:.2f}x {PEER}")
    return {
        "name": workload.name,
        "title": workload.title,
        "output_tokens": workload.output_tokens,
        "tokens_per_second": {
            name: round(statistics.median(workload.output_tokens / r[name]["seconds"] for r in rounds), 1)
            for name in (US, PEER)
        },
        "ratio": round(statistics.median(r["ratio"] for r in rounds), 3),
        "of_roofline": round(statistics.median(r["of_roofline"] for r in rounds), 3),
        "rounds": rounds,
    }


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="Output tokens per second, medians of rounds taken in turn; the peer in static batches of 64")
    for heading in ("workload", "Plimsoll", "Transformers", "ratio", "of roofline", "TTFT p50/p99 ms"):
        table.add_column(heading, justify="left" if heading == "workload" else "right")
    for row in rows:
        speeds, last = row["tokens_per_second"], row["rounds"][-1][US]
        ttft = f"{last['ttft_ms']['p50']:.0f}/{last['ttft_ms']['p99']:.0f}" if "ttft_ms" in last else "-"
        cells = (
            f"{speeds[US]:.0f}",
            f"{speeds[PEER]:.0f}",
            f"{row['ratio']:.2f}x",
            f"{row['of_roofline']:.0%}",
            ttft,
        )
        table.add_row(f"{row['name']}: {row['title']}", *cells)
    return table


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="rounds per workload; medians are reported (default 3)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads of every system")
    parser.add_argument("--only", action="append", metavar="W", help="only this workload (repeatable)")
    parser.add_argument("--scale", type=float, default=1.0, help="smaller workloads for a quick look, e.g. 0.1")
    parser.add_argument("--gpu", action="store_true", help="refuse to measure without one")
    parser.add_argument("--json", metavar="FILE", help="write the result, with hardware, versions and command")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
