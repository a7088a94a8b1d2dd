"""The possible results of sampling by the definition: float64, sorted, one row at a time."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plimsoll_kernels.sampling.params import RowParams

SLACK = 4e-6
"""Weights are float32, within a few units in the last place: this close to a border, either decision is allowed."""


@dataclass(frozen=True)
class Wish:
    """The sampling parameters of one row."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


def row_params(*wishes: Wish, device: str = "cpu") -> RowParams:
    """Return the parameters as the kernels read them."""
    return RowParams(
        torch.tensor([w.temperature for w in wishes], device=device),
        torch.tensor([w.top_k for w in wishes], dtype=torch.int32, device=device),
        torch.tensor([w.top_p for w in wishes], device=device),
        torch.tensor([w.min_p for w in wishes], device=device),
    )


def distribution(logits: Tensor, wish: Wish) -> NDArray[np.float64]:
    """Return each token's probability by the definition, in float64: sort, cut, renormalise (logits `[V]`)."""
    x = logits.double().numpy()
    weights = np.exp((x - x.max()) / np.float32(wish.temperature))
    order = np.argsort(-x, kind="stable")
    kept = order[: wish.top_k or len(order)]
    if wish.top_p < 1.0:
        before = np.cumsum(weights[kept]) - weights[kept]
        inside = before < wish.top_p * weights[kept].sum()
        inside[0] = True
        kept = kept[inside]
    kept = kept[weights[kept] >= wish.min_p]
    out: NDArray[np.float64] = np.zeros_like(weights)
    out[kept] = weights[kept] / weights[kept].sum()
    return out


def allowed(logits: Tensor, wish: Wish, uniform: float) -> set[int]:
    """Return the tokens that a uniform number may draw from logits `[V]`, with both results of decisions near a
    border.
    """
    tokens = set()
    top_ps = {wish.top_p, wish.top_p * (1 - SLACK), wish.top_p * (1 + SLACK)} if wish.top_p < 1.0 else {1.0}
    min_ps = {wish.min_p, wish.min_p * (1 - SLACK), min(1.0, wish.min_p * (1 + SLACK))}
    for top_p, min_p in itertools.product(top_ps, min_ps):
        exact = distribution(logits, replace(wish, top_p=top_p, min_p=min_p))
        sums = exact.cumsum()
        last = int(exact.nonzero()[0][-1])
        low, high = (
            min(int(np.searchsorted(sums, u * sums[-1], side="right")), last)
            for u in (uniform - SLACK, uniform + SLACK)
        )
        tokens |= {low, *(low + 1 + exact[low + 1 : high + 1].nonzero()[0])}
    return tokens
