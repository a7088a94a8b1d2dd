"""`PYTHONPATH=benchmarks python -m embedding.run`: 1,000 texts of mixed lengths to vectors, with `LLM.embed` and with
sentence-transformers, alternating in each round.

The floor is the time of the layers' products at the rate of torch's fastest matrix product in that dtype, all tokens at
once and nothing else computed. The times include tokenising.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch

import question
from embedding.models import MODELS, Model, folder_of, texts
from embedding.peer import SHOWN
from options import Options
from plimsoll_runtime import LLM
from plimsoll_runtime.models.layers.linear import Linear
from plimsoll_runtime.text.tokenizer import load_tokenizer
from plimsoll_runtime.weights.sources.resolve import resolve
from serving import quiet
from tables import Sheet

COUNT = 1000
DTYPES = ("float32", "bfloat16")
ROWS, WIDTH, REPEATS = 2048, 1536, 7
SAME = {"float32": 1e-4, "bfloat16": 5e-2}
"""Maximum difference between numbers of both systems' vectors of length 1."""


class Peer:
    """A process with sentence-transformers. It computes only while Plimsoll is idle, so it has all cores."""

    def __init__(self, folder: Path, threads: int) -> None:
        command = [sys.executable, "-m", "embedding.peer", str(folder), str(threads)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def embed(self, dtype: str, asked: Sequence[str]) -> dict[str, Any]:
        """Return `seconds` for encoding all texts, and `vectors` of the first SHOWN texts."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"dtype": dtype, "texts": asked}) + "\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()


def measure(chosen: Options) -> dict[str, Any]:
    """Measure each model in each dtype."""
    return {"models": [_measure(model, dtype, chosen) for model in MODELS for dtype in DTYPES]}


def _measure(model: Model, dtype: str, chosen: Options) -> dict[str, Any]:
    folder = folder_of(model)
    tokenizer = load_tokenizer(resolve(str(folder)))
    count = max(16, round(COUNT * chosen.scale))
    asked = [texts(count, seed) for seed in range(1, chosen.rounds + 1)]
    with (
        Peer(folder, chosen.threads) as peer,
        LLM(str(folder), dtype=dtype, threads=chosen.threads, kv_memory="256MiB", engine="child") as ours,
    ):
        _check(ours, peer, dtype)
        rounds = [_round(ours, peer, dtype, each) for each in asked]
        backend = ours.info.attention_backend
    tokens = [sum(len(tokenizer.encode(text)) for text in each) for each in asked]
    flops = _product_rate(dtype, chosen.threads)
    floors = [2 * model.body * each / flops for each in tokens]
    return {
        "model": model.name,
        "dtype": dtype,
        "backend": backend,
        "texts": count,
        "tokens": statistics.median(tokens),
        "ours_seconds": statistics.median(r["ours"] for r in rounds),
        "theirs_seconds": statistics.median(r["theirs"] for r in rounds),
        "ratio": statistics.median(r["theirs"] / r["ours"] for r in rounds),
        "floor_seconds": statistics.median(floors),
        "of_floor": statistics.median(floor / r["ours"] for floor, r in zip(floors, rounds, strict=True)),
        "product_gflop_s": round(flops / 1e9),
        "rounds": rounds,
    }


def _check(ours: LLM, peer: Peer, dtype: str) -> None:
    """Check that both systems give the same vectors for SHOWN texts, within SAME; this also warms them up. Raises
    ValueError.
    """
    asked = texts(3 * SHOWN, 0)
    theirs = np.array(peer.embed(dtype, asked)["vectors"])
    difference = float(np.abs(ours.embed(asked)[:SHOWN] - theirs).max())
    if difference > SAME[dtype]:
        raise ValueError(f"vectors differ by {difference:.2g} in {dtype}")


def _round(ours: LLM, peer: Peer, dtype: str, asked: Sequence[str]) -> dict[str, float]:
    busy = quiet.cores_in_use()
    began = time.perf_counter()
    ours.embed(asked)
    mine = time.perf_counter() - began
    theirs = float(peer.embed(dtype, asked)["seconds"])
    return {"ours": mine, "theirs": theirs, "cores_used_by_others": round(busy, 2)}


def _product_rate(dtype: str, threads: int) -> float:
    """Return operations per second of torch's fastest product of a step's size."""
    torch.set_num_threads(threads)
    kind = getattr(torch, dtype)
    x, linear = torch.randn(ROWS, WIDTH, dtype=kind), Linear(torch.randn(WIDTH, WIDTH, dtype=kind))
    seconds = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        linear(x)
        seconds.append(time.perf_counter() - began)
    return float(2 * ROWS * WIDTH * WIDTH / min(seconds))


def table(result: dict[str, Any]) -> Sheet:
    """Return a row for each model and dtype."""
    headings = ["model", "dtype", "tokens", "floor s", "LLM.embed s", "sentence-transformers s", "ratio", "of floor"]
    rows = [
        [
            f"{r['model']} ({r['backend']})",
            r["dtype"],
            f"{r['tokens']:,.0f}",
            f"{r['floor_seconds']:.2f}",
            f"{r['ours_seconds']:.2f}",
            f"{r['theirs_seconds']:.2f}",
            f"{r['ratio']:.2f}x",
            f"{r['of_floor']:.0%}",
        ]
        for r in result["models"]
    ]
    return Sheet("Vectors of 1,000 mixed texts, medians", headings, rows)


if __name__ == "__main__":
    sys.exit(question.main(__doc__, measure, table))
