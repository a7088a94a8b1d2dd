"""What a decoder-only transformer is made of, as data. One decoder computes whatever a `DecoderSpec` says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

Activation = Literal["silu", "gelu_tanh"]
RopeKind = Literal["default", "linear", "llama3", "yarn", "frequency_factors"]


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Attention of one layer. `window` counts the tokens a query sees, itself included; None: all."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    softcap: float | None = None


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding over the whole head (Su et al., 2021; halves rotated as GPT-NeoX does).

    `factor` and what follows belong to the scaled kinds: linear (Chen et al., 2023), llama3 (Dubey et al., 2024),
    yarn (Peng et al., 2023). `frequency_factors` divide the plain frequencies, one each (as GGUF files store llama3).
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


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """A whole decoder. `attention` and `ropes` have one entry a layer.

    - `norm_offset`: norms multiply by (offset + weight): 1 for Gemma, 0 for the others.
    - `post_norms`: a norm after attention and one after the MLP too, before the residual is added.
    - `qk_norm`: an RMS norm over each head of queries and keys, before the rotary embedding.
    - `embedding_scale`: embeddings are multiplied by it, rounded to the dtype that the model runs in.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    attention: tuple[AttentionShape, ...]
    ropes: tuple[RopeSpec, ...]
    max_positions: int
    norm_eps: float
    norm_offset: float = 0.0
    post_norms: bool = False
    qk_norm: bool = False
    activation: Activation = "silu"
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    embedding_scale: float | None = None
    tied_embeddings: bool = False
    final_softcap: float | None = None

    @property
    def num_layers(self) -> int:
        """Decoder layers."""
        return len(self.attention)


class Attention(Protocol):
    """Made by a backend for one step: writes a layer's keys and values to the cache, then attends."""

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """query [T, heads, D], key and value [T, kv_heads, D] -> [T, heads, D]."""
