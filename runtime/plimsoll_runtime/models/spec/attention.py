"""Attention of a layer, with its rotary embedding, as a config describes it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from plimsoll_runtime.models.spec.norm import Norm

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


@dataclass(frozen=True, slots=True)
class Alibi:
    """For each head, slope x (key's position - query's) is added to scores (Press et al., 2022).

    `coarse`: added is scale x slope x key's position instead, where slope x position is computed in
    bfloat16: that is what Falcon is, and far from the first token it is something else.
    """

    slopes: tuple[float, ...]
    coarse: bool = False


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What attention over the cache needs to know. `window` counts the tokens a query sees, itself included; None: all.

    - Scores are multiplied by `scale`, and with a `softcap` c become c x tanh(score / c).
    - `chunk`: a query sees the tokens from the last multiple of it on.
    - `sinks`: attention is called with a score of each head whose value is zero (Xiao et al., 2024).
    - `latent`: a token's keys are its values as well, and are kept once.
    - `whole`: attention is bidirectional: a query also sees the tokens that follow it, those of both sides less than
      `window` away. The layer keeps nothing of a sequence.
    """

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    softcap: float | None = None
    chunk: int | None = None
    alibi: Alibi | None = None
    sinks: bool = False
    latent: bool = False
    whole: bool = False

    def __post_init__(self) -> None:
        if self.alibi is not None and len(self.alibi.slopes) != self.heads:
            raise ValueError(f"{len(self.alibi.slopes)} slopes for {self.heads} heads")
        if self.alibi is not None and self.sinks:
            raise ValueError("attention with both slopes and sinks is not computed: no model has it")

    def first_seen(self, position: int) -> int:
        """The first position that a query sees."""
        first = 0 if self.window is None else max(0, position - self.window + 1)
        return first if self.chunk is None else max(first, position // self.chunk * self.chunk)

    @property
    def most_seen(self) -> int | None:
        """How many tokens a query sees at most; None: all."""
        return min((size for size in (self.window, self.chunk) if size is not None), default=None)

    @property
    def query_width(self) -> int:
        """Of all query heads together."""
        return self.heads * self.head_dim

    @property
    def key_width(self) -> int:
        """Of all key heads together, and of all value heads."""
        return self.kv_heads * self.head_dim

    @property
    def queries_alone(self) -> AttentionShape:
        """Without keys and values, for what is done to heads before attention."""
        return replace(self, kv_heads=0)

    @property
    def cached_width(self) -> int:
        """What is kept of a token: all keys, and all values where they are not the same."""
        return self.key_width if self.latent else 2 * self.key_width


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
class Growth:
    """Queries are multiplied by 1 + scale x log(1 + floor((position + offset) / every)) (Nakanishi, 2025)."""

    scale: float
    every: float
    offset: int = 0


@dataclass(frozen=True, slots=True)
class SelfAttention:
    """Queries, keys and values by one product, over a layer's cache of keys and values.

    - `rope`: None where a layer knows nothing of positions.
    - `clip`: queries, keys and values are cut to [-clip, clip].
    - `growth`: what queries are multiplied by, last of all.
    - `gated`: what comes of it is multiplied by the sigmoid of a number each, which the files have behind each head of
      queries.
    - `value_norm`: over each head of values.
    - `values_of_keys`: the product gives no values: they are the keys as it gives them, normed.
    - `shares`: the number of an earlier layer whose keys and values it attends to. It has none of its own, and a cache
      like that layer's.
    """

    shape: AttentionShape
    rope: RopeSpec | None
    head_norm: HeadNorm | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    clip: float | None = None
    growth: Growth | None = None
    gated: bool = False
    value_norm: Norm | None = None
    values_of_keys: bool = False
    shares: int | None = None

    def __post_init__(self) -> None:
        if self.values_of_keys and self.value_norm is None:
            raise ValueError("values that are keys as they are are not computed: no model has them")
        if self.gated and (self.values_of_keys or self.shares is not None):
            raise ValueError("gates beside heads without values of their own are not computed: no model has them")


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Keys and values of all heads are made of one vector a token, and only that is kept (DeepSeek-AI, 2024).

    The vector has `rank` numbers, which `norm` has normed, and behind them those that turn, which all keys share. A
    head compares `plain` dimensions and those that turn, and its value has `value` dimensions.

    - `query_rank`: queries are made of a vector of so many numbers, normed as well; None: of the states.
    - `bias`: of the products that make these vectors, and of the output.
    - `growth`: what queries are multiplied by.
    """

    heads: int
    rank: int
    plain: int
    value: int
    rope: RopeSpec
    scale: float
    norm: Norm
    query_rank: int | None = None
    bias: bool = False
    growth: Growth | None = None

    @property
    def shape(self) -> AttentionShape:
        """Over the cache: keys are made of nothing, and what makes them of the vector is put into the queries."""
        return AttentionShape(self.heads, 1, self.rank + self.rope.head_dim, self.scale, latent=True)
