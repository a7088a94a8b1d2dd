"""Logits of several kinds."""

from __future__ import annotations

import math

import torch
from torch import Tensor

SHAPES = ("flat", "equal", "steps", "sorted", "masked", "peaked")


def shaped(seed: int, vocab: int, shape: str) -> Tensor:
    """Return logits `[V]` of one kind."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(vocab, generator=generator)
    if shape == "flat":
        return x * 0.01
    if shape == "equal":
        return torch.full((vocab,), 1.25)
    if shape == "steps":
        return (x * 2).round()
    if shape == "sorted":
        return (x * 3).sort(descending=True).values
    if shape == "masked":
        x = (x * 3).where(torch.rand(vocab, generator=generator) < 0.1, -math.inf)
        x[seed % vocab] = 1.0
        return x
    return x * 4 + 6 * (torch.rand(vocab, generator=generator) < 5 / vocab)
