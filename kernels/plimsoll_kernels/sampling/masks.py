"""The tokens that each row of logits may sample."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

WORD_BITS = 32


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """Masks of some of R rows, contiguous and on the logits' device.

    - `masked`: int32 `[R]`, the row of `bits` with a row's mask; -1: every token is allowed.
    - `bits`: int32 `[M, ceil(V / 32)]`; bit t % 32 of word t / 32 is 1 if token t is allowed.
    """

    masked: Tensor
    bits: Tensor

    def check(self, logits: Tensor) -> None:
        """Raise ValueError if they do not fit the logits `[R, V]`."""
        rows, vocab = logits.shape
        words = words_of(vocab)
        if self.masked.shape != (rows,) or self.bits.dim() != 2 or self.bits.shape[1] != words:
            raise ValueError(
                f"masks must be [{rows}] and [M, {words}], got {list(self.masked.shape)} and {list(self.bits.shape)}"
            )
        for tensor in (self.masked, self.bits):
            if tensor.dtype is not torch.int32 or tensor.device != logits.device or not tensor.is_contiguous():
                layout = "contiguous" if tensor.is_contiguous() else "non-contiguous"
                raise ValueError(
                    f"masks must be contiguous int32 on {logits.device}, got {layout} {tensor.dtype} on {tensor.device}"
                )


def words_of(vocab: int) -> int:
    """Return the number of 32-bit words in the mask of one row."""
    return -(-vocab // WORD_BITS)


def forbid(logits: Tensor, masks: TokenMasks) -> Tensor:
    """Return the logits with -infinity for forbidden tokens; NaNs stay, so that a broken row is detected."""
    rows = (masks.masked >= 0).nonzero().squeeze(-1)
    bits = masks.bits[masks.masked[rows]]
    shifts = torch.arange(WORD_BITS, dtype=torch.int32, device=logits.device)
    allowed = (bits[:, :, None] >> shifts & 1).flatten(1)[:, : logits.shape[-1]].bool()
    chosen = logits[rows]
    return logits.index_copy(0, rows, chosen.masked_fill(~(allowed | chosen.isnan()), -torch.inf))
