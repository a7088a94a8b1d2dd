"""Rotary position embeddings, as a config describes them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

RopeKind = Literal["default", "linear", "llama3", "yarn", "longrope", "frequency_factors", "proportional"]


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding of a head's first `head_dim` dimensions (Su et al., 2021).

    Dimension i turns with dimension i + head_dim / 2, as GPT-NeoX has it, or with its neighbour where `pairs` is set,
    as GPT-J has it.

    `factor` and what follows belong to the scaled kinds: linear (Chen et al., 2023), llama3 (Dubey et al., 2024),
    yarn (Peng et al., 2023). `frequency_factors` divide the plain frequencies, one each (as GGUF files store llama3);
    those of a longrope (Ding et al., 2024) are for contexts of `original_max_positions`, and `long_factors` for others.
    Of a proportional one only the first pairs turn, `share` of them all, as fast as if all did.
    """

    head_dim: int
    theta: float
    kind: RopeKind = "default"
    factor: float = 1.0
    original_max_positions: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    truncate: bool = True
    frequency_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    pairs: bool = False
    share: float = 1.0

    def within(self, length: int) -> RopeSpec:
        """What it is for contexts of at most so many tokens."""
        if self.kind != "longrope":
            return self
        factors = self.long_factors if length > self.original_max_positions else self.frequency_factors
        return replace(self, kind="frequency_factors", frequency_factors=factors, long_factors=())
