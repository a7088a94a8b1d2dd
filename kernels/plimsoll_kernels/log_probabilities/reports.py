"""What is told of each row's token."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Reports:
    """Of R rows; natural logarithms, NaN in rows whose largest logit is not finite.

    - `chosen`: float32 `[R]`, the tokens' own log probabilities.
    - `ranks`: int64 `[R]`, 1 where no logit is larger: equal ones share the better rank.
    - `top_tokens`, `top`: int64 and float32 `[R, N]`, the most likely tokens, the most likely first and of equals the
      first in the vocabulary, and theirs. Where a row wants fewer than N, the rest means nothing.
    """

    chosen: Tensor
    ranks: Tensor
    top_tokens: Tensor
    top: Tensor

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """All of them, as they are given."""
        return self.chosen, self.ranks, self.top_tokens, self.top
