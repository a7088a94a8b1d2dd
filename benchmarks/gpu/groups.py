"""`python -m gpu.groups group-1|group-n`: parallel groups on GPUs: their tests, and times of sums over their ranks.

group-1 needs one GPU: two ranks share it over gloo, and NCCL joins one rank alone. group-n needs two or more, of which
each rank has one. It is skipped, with the reason, if there are fewer.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from gpu.harness.part import SKIPPED
from gpu.harness.sources import ROOT
from plimsoll_runtime.driver.process.interfaces import set_interface
from plimsoll_runtime.execution.graphs.capture import CudaCapture
from plimsoll_runtime.parallel.captures import RankCapture
from plimsoll_runtime.parallel.collectives import TorchCollectives
from plimsoll_runtime.parallel.member import CountedCollectives

NEEDED: Mapping[str, int] = {"group-1": 1, "group-n": 2}
"""GPUs that each part needs."""
TESTS = "tests/integration/groups/test_gpus.py"
KIB = (3, 64, 192, 1024, 16384)
"""Sizes of sums. A decode of one row with 8,192 hidden values has 32 KiB, a chunk of 512 rows 16 MiB."""
BATCHES, CALLS = 30, 20
"""Batches that are timed, and sums in each."""
LOOPBACK = "127.0.0.1"
SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Row:
    """Microseconds of one sum, over batches of sums. `how`: the backend, and "graph" if the batch is a graph."""

    how: str
    ranks: int
    kib: int
    p50: float
    p95: float


def main() -> int:
    """Run a part. Return 0 if its tests pass, 77 if it cannot run, else 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=NEEDED)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if reason := why_not(args.part, gpus):
        print(reason)
        return SKIPPED
    command = [sys.executable, "-m", "pytest", "-q", "-W", "default", TESTS, "-k", args.part]
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    rows = exchange_times(args.part, gpus)
    print(table(rows))
    if args.json:
        result = {"tests": code, "gpus": gpus, "times": [asdict(row) for row in rows]}
        args.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print("tests passed" if code == 0 else f"pytest ended with {code}")
    return 1 if code else 0


def why_not(part: str, gpus: int) -> str:
    """Return why a part cannot run with this number of GPUs; empty if it can."""
    needed = NEEDED[part]
    if gpus >= needed:
        return ""
    return f"{part} needs {needed} GPU{'s' if needed > 1 else ''}, and torch finds {gpus or 'none'}"


def exchange_times(part: str, gpus: int) -> list[Row]:
    """Return the times of sums: of two ranks over gloo on one GPU and of NCCL alone, or over NCCL on all GPUs."""
    if part == "group-1":
        return [*times("gloo", 2, "cuda", devices=1), *times("nccl", 1, "cuda", devices=1)]
    counts = sorted({2, gpus})
    return [row for ranks in counts for row in times("nccl", ranks, "cuda", devices=gpus)]


def times(backend: str, ranks: int, device: str, *, devices: int, kib: Sequence[int] = KIB) -> list[Row]:
    """Start ranks and return rank 0's times of sums. Raises RuntimeError if a rank fails or does not end."""
    spawned = get_context("spawn")
    results: SimpleQueue[list[Row]] = spawned.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"file://{folder}/meeting"
        started = [
            spawned.Process(target=_rank, args=(backend, meeting, rank, ranks, device, devices, list(kib), results))
            for rank in range(ranks)
        ]
        try:
            for process in started:
                process.start()
            ends = time.monotonic() + SECONDS
            for process in started:
                process.join(max(0.0, ends - time.monotonic()))
            codes = [process.exitcode for process in started]
            if any(codes):
                raise RuntimeError(f"ranks over {backend} ended with {codes}")
            if None in codes:
                raise RuntimeError(f"ranks over {backend} did not end within {SECONDS:.0f} s: {codes}")
        finally:
            for process in started:
                process.kill()
    return results.get()


def _rank(
    backend: str,
    meeting: str,
    rank: int,
    ranks: int,
    device: str,
    devices: int,
    kib: list[int],
    results: SimpleQueue[list[Row]],
) -> None:
    set_interface(backend, LOOPBACK, os.environ)
    place = torch.device(device, rank % devices) if device == "cuda" else torch.device(device)
    if device == "cuda":
        torch.cuda.set_device(place)
    group = TorchCollectives(backend, meeting, rank, ranks)
    collectives = CountedCollectives(group)
    rows: list[Row] = []
    for size in kib:
        rows += _of_size(backend, ranks, collectives, size, place)
    if rank == 0:
        results.put(rows)
    # No rank leaves before all have finished.
    group.gathered(b"")
    if backend == "nccl":
        # As at the end of a lost generation: drop the communicators without waiting.
        dist.distributed_c10d._abort_process_group()
    else:
        dist.destroy_process_group()


@torch.inference_mode()
def _of_size(backend: str, ranks: int, collectives: CountedCollectives, kib: int, device: torch.device) -> list[Row]:
    part = torch.ones(kib * 256, device=device)

    def batch() -> Tensor:
        for _ in range(CALLS):
            total = collectives.sum(part)
        return total

    _check(batch(), ranks)
    rows = [_timed(backend, ranks, kib, batch, device)]
    if backend == "nccl":
        captured = RankCapture(CudaCapture(device), collectives)(batch)
        captured.replay()
        _check(captured.out, ranks)
        rows.append(_timed(f"{backend}, graph", ranks, kib, captured.replay, device))
    return rows


def _check(total: Tensor, ranks: int) -> None:
    if not bool((total == ranks).all()):
        raise RuntimeError(f"the sum of ones over {ranks} ranks is wrong")


def _timed(how: str, ranks: int, kib: int, batch: Callable[[], object], device: torch.device) -> Row:
    taken = []
    for _ in range(BATCHES):
        began = time.perf_counter()
        batch()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken.append(1e6 * (time.perf_counter() - began) / CALLS)
    cuts = statistics.quantiles(taken, n=20)
    return Row(how, ranks, kib, round(cuts[9], 1), round(cuts[18], 1))


def table(rows: Sequence[Row]) -> str:
    """Return the times as lines: a row for each backend, number of ranks and size."""
    lines = [f"{'sum over ranks':<16}{'ranks':>6}{'KiB':>8}{'p50 us':>10}{'p95 us':>10}"]
    lines += [f"{row.how:<16}{row.ranks:>6}{row.kib:>8}{row.p50:>10.1f}{row.p95:>10.1f}" for row in rows]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
