"""Attention of one layer, as a config describes it."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll_runtime.models.spec.norm import Norm
from plimsoll_runtime.models.spec.rope import RopeSpec


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What attention over the cache needs to know. `window` counts the tokens a query sees, itself included; None: all.

    Scores are multiplied by `scale`, and with a `softcap` c become c x tanh(score / c).
    """

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    softcap: float | None = None

    @property
    def query_width(self) -> int:
        """Of all query heads together."""
        return self.heads * self.head_dim

    @property
    def key_width(self) -> int:
        """Of all key heads together, and of all value heads."""
        return self.kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """A norm over each head of queries and of keys, one weight [head_dim] for all heads of each.

    - `together`: over all heads of queries at once, and over all heads of keys, with a weight for each dimension.
    - `own`: over each head, with weights of its own.
    - `turned`: after the rotary embedding instead of before.
    """

    norm: Norm
    together: bool = False
    own: bool = False
    turned: bool = False


@dataclass(frozen=True, slots=True)
class SelfAttention:
    """Queries, keys and values by one product, over a layer's cache of keys and values.

    - `rope`: None where a layer knows nothing of positions.
    - `clip`: queries, keys and values are cut to [-clip, clip].
    """

    shape: AttentionShape
    rope: RopeSpec | None
    head_norm: HeadNorm | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    clip: float | None = None


Mixer = SelfAttention
"""What mixes tokens with each other: one of these."""
