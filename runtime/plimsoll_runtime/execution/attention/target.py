"""What attention is to be computed for: the question that a backend is chosen by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from plimsoll_runtime.models.spec.attention import AttentionShape


@dataclass(frozen=True, slots=True)
class Target:
    """A device, the dtype of model and cache, one attention shape a layer, and the tokens of a block.

    `unfused`: why the kernels that compute a whole step do not compute the model's, None if they do.
    """

    device: torch.device
    dtype: torch.dtype
    shapes: Sequence[AttentionShape]
    block_size: int
    unfused: str | None = None
