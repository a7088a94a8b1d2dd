"""What the masks mean that a model makes for its layers: the tokens that a row sees, as a window or as all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from plimsoll_runtime.models.foreign.errors import UnservedError
from plimsoll_runtime.models.foreign.interface import NAME

FAR = 2**20
"""A position that no window reaches back from to the first token. Larger windows count as none."""
_ROWS = (FAR, FAR - 1, FAR - 37)
"""Rows that are asked what they see; a window sees as much from each of them, and a chunk does not."""

MaskFunction = Callable[..., Any]
"""Of batch, head, row and token, all tensors: whether the row sees the token."""


class Masks:
    """The masks that were made, each known by its memory: models pass them on, or slices of them."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[Tensor, MaskFunction]] = {}

    def window(self, mask: Tensor | None) -> int | None:
        """What a layer sees by the mask that it was given. Raises UnservedError for one that was not made here."""
        if mask is None:
            raise UnservedError("attends without saying which tokens a row sees")
        if mask.data_ptr() not in self._made:
            raise UnservedError("makes masks of its own")
        return window_of(self._made[mask.data_ptr()][1])

    def make(
        self, *, batch_size: int, q_length: int, kv_length: int, mask_function: MaskFunction, **rest: Any
    ) -> Tensor:
        """See Transformers' `AttentionMaskInterface`: a mask of [1, 1, rows, tokens], which nobody looks into."""
        mask = torch.zeros(batch_size, 1, q_length, kv_length, dtype=torch.bool)
        self._made[mask.data_ptr()] = (mask, mask_function)
        return mask


@contextmanager
def watched_masks() -> Iterator[Masks]:
    """Within, models that call our attention make masks. Without, they make none: our attention needs none."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    masks = Masks()
    known = type(ALL_MASK_ATTENTION_FUNCTIONS)._global_mapping
    known[NAME] = masks.make
    try:
        yield masks
    finally:
        del known[NAME]


def window_of(mask: MaskFunction) -> int | None:
    """Tokens that a row sees, itself included; None: all before it. Raises UnservedError for other masks."""
    tokens = torch.arange(FAR + 2)
    zero = torch.tensor(0)
    found = set()
    for row in _ROWS:
        seen = torch.broadcast_to(mask(zero, zero, torch.tensor(row), tokens), tokens.shape)
        count = int(seen.sum())
        if not 0 < count <= row + 1 or not bool(seen[row + 1 - count : row + 1].all()):
            raise UnservedError("masks in a way that is neither causal nor a sliding window")
        found.add(None if count == row + 1 else count)
    if len(found) > 1:
        raise UnservedError("masks tokens by chunks")
    return found.pop()
