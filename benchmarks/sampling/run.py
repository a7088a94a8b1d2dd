"""`python -m sampling.run`: sampling with Plimsoll's kernel, compared with plain torch and with greedy sampling.

Typical logits (a few tokens far above the rest), and flat ones, for which filters keep many tokens. Times are CPU
times: kernel and reference each run on one thread.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import question
from options import Options
from plimsoll_kernels.sampling.op import sample
from plimsoll_kernels.sampling.params import RowParams
from tables import NOT_APPLICABLE, Sheet

VOCABULARIES = (8192, 128_256, 262_144)
BATCHES = (1, 16, 64)
WISHES = {
    "temperature": (0.8, 0, 1.0, 0.0),
    "top-k 40, top-p 0.95": (0.8, 40, 0.95, 0.0),
    "top-p 0.95": (0.8, 0, 0.95, 0.0),
    "min-p 0.05": (0.8, 0, 1.0, 0.05),
    "top-p 0.95, flat": (0.8, 0, 0.95, 0.0),
}
REFERENCE_LOGITS = 2**21
"""Maximum logits (rows x vocabulary) for which the reference is measured; it takes seconds for more."""
OURS = 5
"""Calls of the kernel per round, because they are short."""


def measure(chosen: Options) -> dict[str, Any]:
    """Return milliseconds per call of kernel, greedy sampling and reference, and the ratios kernel over greedy and
    reference over kernel; medians over the rounds.
    """
    torch.set_num_threads(1)
    rows = [
        _case(name, wish, vocab, batch, chosen.rounds)
        for vocab in VOCABULARIES
        for batch in BATCHES
        for name, wish in WISHES.items()
        if batch <= max(1, BATCHES[-1] * chosen.scale)
    ]
    return {"cases": rows}


def _case(name: str, wish: tuple[float, int, float, float], vocab: int, batch: int, rounds: int) -> dict[str, Any]:
    logits = _flat(batch, vocab) if "flat" in name else _peaked(batch, vocab)
    uniform = torch.rand(batch, dtype=torch.float64)
    params, greedy = _params(batch, *wish), _params(batch, 0.0, 0, 1.0, 0.0)
    systems: dict[str, Callable[[], object]] = {
        "kernel": lambda: sample(logits, params, uniform),
        "greedy": lambda: sample(logits, greedy, uniform),
    }
    if batch * vocab <= REFERENCE_LOGITS:
        systems["reference"] = lambda: sample(logits, params, uniform, implementation="reference")
    sample(logits, params, uniform)
    times: dict[str, list[float]] = {system: [] for system in systems}
    for _ in range(rounds):
        for system, work in systems.items():
            times[system].append(_milliseconds(work, 1 if system == "reference" else OURS))
    kernel = times["kernel"]
    return {
        "name": name,
        "vocabulary": vocab,
        "batch": batch,
        "ms": {system: statistics.median(values) for system, values in times.items()},
        "over_greedy": statistics.median(k / g for k, g in zip(kernel, times["greedy"], strict=True)),
        "reference_over_kernel": statistics.median(r / k for r, k in zip(times["reference"], kernel, strict=True))
        if "reference" in times
        else None,
    }


def _milliseconds(work: Callable[[], object], calls: int) -> float:
    start = time.thread_time()
    for _ in range(calls):
        work()
    return 1000 * (time.thread_time() - start) / calls


def _peaked(batch: int, vocab: int) -> torch.Tensor:
    """Return logits in which a few tokens have nearly all of the mass."""
    generator = torch.Generator().manual_seed(vocab)
    logits = torch.randn(batch, vocab, generator=generator) * 1.5
    likely = torch.randint(0, vocab, (batch, 20), generator=generator)
    return logits.scatter_add_(-1, likely, torch.linspace(14, 20, 20).expand(batch, -1))


def _flat(batch: int, vocab: int) -> torch.Tensor:
    return torch.randn(batch, vocab, generator=torch.Generator().manual_seed(vocab)) * 0.5


def _params(batch: int, temperature: float, top_k: int, top_p: float, min_p: float) -> RowParams:
    return RowParams(
        torch.full((batch,), temperature),
        torch.full((batch,), top_k, dtype=torch.int32),
        torch.full((batch,), top_p),
        torch.full((batch,), min_p),
    )


def table(result: dict[str, Any]) -> Sheet:
    """Return a row for each set of parameters, vocabulary and batch."""
    rows = [
        [
            *(case["name"], str(case["vocabulary"]), str(case["batch"])),
            *(f"{case['ms'][s]:.3f}" if s in case["ms"] else NOT_APPLICABLE for s in ("kernel", "greedy", "reference")),
            f"{case['over_greedy']:.2f}x",
            f"{case['reference_over_kernel']:.0f}x" if "reference" in case["ms"] else NOT_APPLICABLE,
        ]
        for case in result["cases"]
    ]
    headings = ["wish", "vocabulary", "batch", "kernel", "greedy", "torch", "kernel / greedy", "torch / kernel"]
    return Sheet("Milliseconds a call, one thread", headings, rows)


if __name__ == "__main__":
    sys.exit(question.main(__doc__, measure, table))
