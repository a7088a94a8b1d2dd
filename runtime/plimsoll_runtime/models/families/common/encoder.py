"""Encoders: bidirectional attention, norms after sums, and classification heads."""

from __future__ import annotations

from plimsoll_runtime.errors import UnsupportedFieldError
from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.spec.attention import AttentionShape, RopeSpec, SelfAttention
from plimsoll_runtime.models.spec.decoder import DecoderSpec, Embedding, Head, LayerSpec
from plimsoll_runtime.models.spec.feed_forward import FeedForward
from plimsoll_runtime.models.spec.norm import Norm
from plimsoll_runtime.models.spec.pooling import Dense, Pooling
from plimsoll_runtime.models.spec.tensor_names import Names

HEADS_OF_TRAINING = ("cls.", "lm_head.", "head.", "decoder.", "classifier.", "pooler.", "score.")
"""Prefixes of training heads of encoders, which are not read for other tasks."""


def whole_shape(config: Config) -> AttentionShape:
    """Return a bidirectional attention shape with as many key heads as query heads, ignoring num_key_value_heads."""
    heads, _, head_dim = Config({**config.values, "num_key_value_heads": None}).heads()
    return AttentionShape(heads, heads, head_dim, head_dim**-0.5, whole=True)


def norms_behind(
    architecture: str,
    config: Config,
    mlp: FeedForward,
    embedding: Embedding,
    names: Names,
    *,
    max_positions: int,
    rope: RopeSpec | None = None,
    bias: bool = True,
) -> DecoderSpec:
    """Return an encoder with BERT's layers, which are all equal and normalise each residual sum."""
    norm = layer_norm(config)
    layer = LayerSpec(
        SelfAttention(whole_shape(config), rope, qkv_bias=bias, output_bias=bias),
        mlp,
        norm,
        before=False,
        residual="normed",
    )
    return DecoderSpec(
        architecture,
        vocab_size=config.get("vocab_size", int),
        hidden_size=config.get("hidden_size", int),
        layers=(layer,) * config.layers(),
        max_positions=max_positions,
        final_norm=None,
        embedding=embedding,
        head=Head(tied=True),
        names=names,
    )


def layer_norm(config: Config) -> Norm:
    """Return a layer norm with weight and bias."""
    return Norm(config.get("layer_norm_eps", float, 1e-12), "layer", biased=True)


def absolute_alone(config: Config) -> None:
    """Raise UnsupportedFieldError if attention scores depend on relative positions, or the model is a decoder."""
    config.refuse_unless(position_embedding_type="absolute", is_decoder=False, add_cross_attention=False)


def bert_head(config: Config, prefix: str, labels: int) -> Pooling:
    """Return a pooling of the first token, with a tanh layer and a classifier."""
    hidden = config.get("hidden_size", int)
    return Pooling("first", (Dense(f"{prefix}.pooler.dense", hidden, activation="tanh"), Dense("classifier", labels)))


def chosen(config: Config, field: str, known: tuple[str, ...], default: str) -> str:
    """Return a field whose value must be one of `known`. Raises UnsupportedFieldError."""
    word = config.get(field, str, default)
    if word not in known:
        raise UnsupportedFieldError(f"config.json: {field} = {word!r} is not supported (only {', '.join(known)})")
    return word
