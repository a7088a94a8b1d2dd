"""What is known of a decoder before it has any weights, whatever will compute it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch

from plimsoll_runtime.models.program import Facts


class Outline(Protocol):
    """A program is one; a model that Transformers' own code computes has another (`models/foreign/outline.py`)."""

    @property
    def facts(self) -> Facts:
        """What scheduler, cache and runner know of it."""

    def weight_shapes(self, dtype: torch.dtype) -> Iterable[tuple[tuple[int, ...], torch.dtype]]:
        """Each tensor that is kept once loaded, matrices in `dtype`."""

    def weight_bytes(self, dtype: torch.dtype) -> int:
        """Bytes that these take."""

    @property
    def repacks(self) -> bool:
        """Whether torch packs matrices once more on a CPU, beside those that an image holds."""

    def row_bytes(self, size: int) -> int:
        """Bytes that computing a row in torch has allocated at its widest, for elements of `size` bytes."""

    def beside_rows(self, size: int, rows: int, longest: int) -> int:
        """Bytes beside those of its rows that a step of so many, in sequences of at most `longest` tokens, takes."""

    def logits_bytes(self, size: int) -> int:
        """Bytes that a row of logits takes in torch, with the copies that are made on the way to float32."""
