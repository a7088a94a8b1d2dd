"""Sampling from a large vocabulary: microseconds, and the multiple of reading the logits once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gpu.clock import Limits, seconds
from plimsoll_kernels.sampling.op import sample
from plimsoll_kernels.sampling.params import RowParams
from plimsoll_runtime.execution.graphs.capture import Capture

LAUNCHES = 10
VOCABULARY = 151_936
"""Vocabulary size of Qwen 2.5 and Qwen 3."""
BATCHES = (1, 256)


@dataclass(frozen=True, slots=True)
class Wish:
    """Sampling parameters of all rows. `flat`: logits with many likely tokens."""

    name: str
    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    flat: bool = False


WISHES = (
    Wish("the most likely", temperature=0.0),
    Wish("temperature"),
    Wish("top-k 50, top-p 0.95", top_k=50, top_p=0.95),
    Wish("top-p 0.95", top_p=0.95),
    Wish("top-p 0.95, flat", top_p=0.95, flat=True),
    Wish("min-p 0.05", min_p=0.05),
)


@torch.inference_mode()
def measure(
    wish: Wish, rows: int, vocabulary: int, known: Limits, capture: Capture, rounds: int, device: torch.device
) -> dict[str, Any]:
    """Return the microseconds of sampling from all rows, and their multiple of the time for reading the logits once.
    Several launches form one graph, to exclude the host's launch time.
    """
    logits = logits_of(rows, vocabulary, flat=wish.flat).to(device)
    params = _params(wish, rows, device)
    uniform = torch.rand(rows, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(device)

    def chosen() -> Tensor:
        for _ in range(LAUNCHES):
            found = sample(logits, params, uniform, implementation="triton")
        return found[0]

    taken = seconds(capture(chosen).replay, device, rounds) / LAUNCHES
    return {
        "name": f"{wish.name}, {rows} x {vocabulary}",
        "wish": wish.name,
        "rows": rows,
        "microseconds": round(1e6 * taken, 1),
        "of_reading": round(taken / (logits.nbytes / known.bandwidth), 3),
    }


def logits_of(rows: int, vocabulary: int, *, flat: bool) -> Tensor:
    """Return float32 [rows, vocabulary]: typical ones (a few tokens have nearly all of the mass), or flat ones."""
    generator = torch.Generator().manual_seed(vocabulary)
    logits = torch.randn(rows, vocabulary, generator=generator)
    if flat:
        return logits * 0.5
    likely = torch.randint(0, vocabulary, (rows, 20), generator=generator)
    return (logits * 1.5).scatter_add_(-1, likely, torch.linspace(14, 20, 20).expand(rows, -1))


def _params(wish: Wish, rows: int, device: torch.device) -> RowParams:
    return RowParams(
        torch.full((rows,), wish.temperature, device=device),
        torch.full((rows,), wish.top_k, dtype=torch.int32, device=device),
        torch.full((rows,), wish.top_p, device=device),
        torch.full((rows,), wish.min_p, device=device),
    )
