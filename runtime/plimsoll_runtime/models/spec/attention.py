"""Attention and rotary embedding of a layer, as a config describes them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from plimsoll_runtime.engine.work.visible import Visible
from plimsoll_runtime.models.spec.norm import Norm

RopeKind = Literal["default", "linear", "llama3", "yarn", "longrope", "frequency_factors", "proportional"]


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding of a head's first `head_dim` dimensions (Su et al., 2021).

    Dimensions i and i + head_dim / 2 form a pair as in GPT-NeoX; with `pairs`, neighbours do as in GPT-J.

    `factor` and the following fields are for scaled kinds: linear (Chen et al., 2023), llama3 (Dubey et al., 2024),
    yarn (Peng et al., 2023). `frequency_factors` divide the plain frequencies, one each (GGUF files store llama3 so).
    For longrope (Ding et al., 2024) these are for contexts up to `original_max_positions`, and `long_factors` for
    longer ones. The kind proportional rotates only the first `share` of all pairs, with the frequencies of a full
    rotation.
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
        """Return the rope for contexts of at most `length` tokens."""
        if self.kind != "longrope":
            return self
        factors = self.long_factors if length > self.original_max_positions else self.frequency_factors
        return replace(self, kind="frequency_factors", frequency_factors=factors, long_factors=())


@dataclass(frozen=True, slots=True)
class Alibi:
    """For each head, adds slope x (key's position - query's position) to scores (Press et al., 2022).

    `coarse`: adds scale x slope x key's position, with slope x position computed in bfloat16, as Falcon does. The
    rounding changes scores far from the first token.
    """

    slopes: tuple[float, ...]
    coarse: bool = False


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Parameters of attention over the cache. `window` is how many tokens a query sees, including itself; None: all.

    - Scores are multiplied by `scale`; a `softcap` c turns them into c x tanh(score / c).
    - `chunk`: a query sees tokens from the last multiple of it on.
    - `sinks`: each head has an extra score whose value is zero (Xiao et al., 2024).
    - `latent`: a token's keys are also its values and are stored once.
    - `whole`: attention is bidirectional: a query sees tokens on both sides less than `window` away. The layer caches
      nothing.
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
            raise ValueError(f"{len(self.alibi.slopes)} ALiBi slopes for {self.heads} heads")
        if self.alibi is not None and self.sinks:
            raise ValueError("attention with both ALiBi slopes and sinks is not supported")

    def first_seen(self, position: int) -> int:
        """Return the first position that a query sees."""
        return self.mask.first_seen(position)

    @property
    def mask(self) -> Visible:
        """The tokens that a query sees."""
        return Visible(self.window, self.chunk, self.whole)

    @property
    def most_seen(self) -> int | None:
        """The largest number of tokens that a query sees; None: all."""
        return min((size for size in (self.window, self.chunk) if size is not None), default=None)

    @property
    def query_width(self) -> int:
        """Columns of all query heads."""
        return self.heads * self.head_dim

    @property
    def key_width(self) -> int:
        """Columns of all key heads, and of all value heads."""
        return self.kv_heads * self.head_dim

    @property
    def queries_alone(self) -> AttentionShape:
        """The shape without keys and values, for head ops before attention."""
        return replace(self, kv_heads=0)

    @property
    def cached_width(self) -> int:
        """Cached numbers for each token: keys, and values if they differ."""
        return self.key_width if self.latent else 2 * self.key_width


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """A norm over each head of queries and of keys, with one weight [head_dim] for all query heads and one for all key
    heads.

    - `together`: one norm over all query heads and one over all key heads, with a weight for each dimension.
    - `own`: over each head, with its own weights.
    - `turned`: after the rotary embedding instead of before.
    """

    norm: Norm
    together: bool = False
    own: bool = False
    turned: bool = False


@dataclass(frozen=True, slots=True)
class Growth:
    """Multiplies queries by 1 + scale x log(1 + floor((position + offset) / every)) (Nakanishi, 2025)."""

    scale: float
    every: float
    offset: int = 0


@dataclass(frozen=True, slots=True)
class SelfAttention:
    """Attention with queries, keys and values from one product, over a layer's KV cache.

    - `rope`: None for a layer without positions.
    - `clip`: queries, keys and values are clipped to [-clip, clip].
    - `growth`: factor of queries, applied last.
    - `gated`: the result is multiplied by sigmoid gates, which the files store after each head of queries.
    - `value_norm`: norm over each head of values.
    - `values_of_keys`: the values are the projected keys, normalised.
    - `shares`: the number of an earlier layer whose keys and values it uses. The layer has none, and uses that cache.
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
            raise ValueError("values_of_keys without value_norm is not supported")
        if self.gated and (self.values_of_keys or self.shares is not None):
            raise ValueError("gates with shared keys or values are not supported")


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Attention whose keys and values are computed from one cached vector for each token (DeepSeek-AI, 2024).

    The vector has `rank` numbers, normalised by `norm`, followed by rotated numbers, which all keys share. A head
    compares `plain` dimensions and the rotated ones, and its value has `value` dimensions.

    - `query_rank`: rank of a normalised vector from which queries are computed; None: they come from the states.
    - `bias`: whether the products that make these vectors, and the output, have biases.
    - `growth`: factor of queries.
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
        """The shape of attention over the cache, with the key projection applied to queries instead."""
        return AttentionShape(self.heads, 1, self.rank + self.rope.head_dim, self.scale, latent=True)
