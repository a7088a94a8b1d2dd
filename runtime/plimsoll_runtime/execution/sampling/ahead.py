"""Tokens without an alternative: a guide takes them while the step is computed that chooses the first of them."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from plimsoll_kernels.sampling.masks import WORD_BITS
from plimsoll_runtime.execution.sampling.guide import Guide


def only_token(mask: NDArray[np.int32]) -> int | None:
    """The one token that a mask holds; None where it holds several, or none."""
    if np.count_nonzero(mask) != 1:
        return None
    place = int(mask.astype(np.bool_).argmax())
    word = int(mask[place].view(np.uint32))
    return None if word & (word - 1) else place * WORD_BITS + word.bit_length() - 1


def take_forced(guide: Guide, mask: NDArray[np.int32], ends: Collection[int], most: int) -> list[int]:
    """Have a guide take the only token of its mask, and up to `most` behind it as long as there is no other choice.

    Returns what it has taken: nothing where the mask holds several tokens. Nothing comes behind one of `ends`.
    """
    token, tokens = only_token(mask), list[int]()
    scratch = np.empty_like(mask)
    while token is not None:
        guide.take(token)
        tokens.append(token)
        if token in ends or guide.error is not None or len(tokens) > most or not guide.limits:
            break
        guide.fill(scratch)
        token = only_token(scratch)
    return tokens
