"""Log probabilities of each row's token and of the most likely tokens."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Reports(NamedTuple):
    """Reports of R rows; natural logarithms, NaN in rows whose largest logit is not finite.

    - `chosen`: float32 `[R]`, the tokens' own log probabilities.
    - `ranks`: int64 `[R]`, 1 if no logit is larger; equal logits share the better rank.
    - `top_tokens`, `top`: int64 and float32 `[R, N]`, the most likely tokens in falling order, of equal ones the first
      in the vocabulary first, and their log probabilities. If a row has fewer than N alternatives, its other entries
      are undefined.
    """

    chosen: Tensor
    ranks: Tensor
    top_tokens: Tensor
    top: Tensor
