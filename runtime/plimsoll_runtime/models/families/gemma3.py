"""Gemma 3 (text) and EmbeddingGemma: windows with their own RoPE on five layers of six, four norms a layer, head norms.

Also computes which layers of Gemma 3n and 4 share keys and values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.spec.attention import AttentionShape, HeadNorm, RopeSpec, SelfAttention
from plimsoll_runtime.models.spec.decoder import DecoderSpec, Embedding, Head, LayerSpec
from plimsoll_runtime.models.spec.feed_forward import GatedMlp
from plimsoll_runtime.models.spec.norm import Norm
from plimsoll_runtime.models.spec.tensor_names import Names

FULL, SLIDING = "full_attention", "sliding_attention"
LOCAL_THETA, GLOBAL_THETA = 10_000.0, 1_000_000.0
VOCAB = 262_208
DEFAULTS = {
    "num_key_value_heads": 4,
    "head_dim": 256,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
    "max_position_embeddings": 131_072,
}
"""Defaults of missing fields."""
NAMES = Names(
    norms=(
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    )
)


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of Gemma3ForCausalLM."""
    values = {**DEFAULTS, **values}
    config = Config(values)
    config.refuse_unless(
        hidden_activation="gelu_pytorch_tanh",
        hidden_act="gelu_pytorch_tanh",
        attn_logit_softcapping=0.0,
    )
    heads, kv_heads, head_dim = config.heads()
    pattern = config.get("sliding_window_pattern", int)
    if not pattern:
        raise ModelError("config.json: sliding_window_pattern is 0; it must be positive")
    types = config.layer_types([FULL if (i + 1) % pattern == 0 else SLIDING for i in range(config.layers())])
    scalar = config.get("query_pre_attn_scalar", float, 256.0)
    if not scalar:
        raise ModelError("config.json: query_pre_attn_scalar is 0; it must be positive")
    scale = scalar**-0.5
    whole = config.get("use_bidirectional_attention", bool, default=False)
    window = config.get("sliding_window", int)
    full = AttentionShape(heads, kv_heads, head_dim, scale, whole=whole)
    shapes = {FULL: full, SLIDING: replace(full, window=window // 2 + 1 if whole else window)}
    ropes = ropes_of(config, head_dim)
    bias = config.get("attention_bias", bool, default=False)
    norm = Norm(config.get("rms_norm_eps", float, 1e-6), offset=1.0)
    mlp = GatedMlp(config.get("intermediate_size", int), "gelu_tanh")

    def layer(kind: str) -> LayerSpec:
        mixer = SelfAttention(shapes[kind], ropes[kind], HeadNorm(norm), qkv_bias=bias, output_bias=bias)
        return LayerSpec(mixer, mlp, norm, after=True)

    return decoder_of("Gemma3ForCausalLM", config, [layer(kind) for kind in types], norm, NAMES, vocab=VOCAB)


def ropes_of(config: Config, head_dim: int) -> dict[str, RopeSpec]:
    """Return the rope of each layer type."""
    local = config.rope_of_type(SLIDING, head_dim, LOCAL_THETA, base="rope_local_base_freq", scaled=False)
    return {FULL: config.rope_of_type(FULL, head_dim, GLOBAL_THETA), SLIDING: local}


def decoder_of(
    architecture: str, config: Config, layers: Sequence[LayerSpec], norm: Norm, names: Names, vocab: int | None = None
) -> DecoderSpec:
    """Return a decoder with a scaled embedding and optionally capped logits. `vocab`: the default vocabulary size."""
    hidden = config.positive("hidden_size", int)
    return DecoderSpec(
        architecture,
        vocab_size=config.get("vocab_size", int, vocab),
        hidden_size=hidden,
        layers=tuple(layers),
        max_positions=config.get("max_position_embeddings", int),
        final_norm=norm,
        embedding=Embedding(scale=hidden**0.5),
        head=Head(
            tied=config.get("tie_word_embeddings", bool, default=True),
            softcap=config.get("final_logit_softcapping", float, 0.0) or None,
        ),
        names=names,
    )


UNREAD = ("k_proj", "v_proj", "k_norm", "v_norm")
"""Modules of layers with shared keys that files may contain, and that are not read."""


def owners_of(config: Config, kinds: Sequence[str], default: int) -> list[int | None]:
    """Return for each layer the number of the layer whose keys and values it reads; None: its own.

    The last num_kv_shared_layers layers (`default` if the config has no number) read those of the last layer of their
    type before them.
    """
    shared = config.get("num_kv_shared_layers", int, default)
    own = kinds[: max(0, len(kinds) - shared)]
    if missing := [kind for kind in kinds if kind not in own]:
        raise ModelError(
            f"config.json: num_kv_shared_layers is {shared}, but the {len(kinds) - shared} layers before have no "
            f"{missing[0]} layer to share keys and values with"
        )
    last = {kind: number for number, kind in enumerate(own)}
    return [None if number < len(own) else last[kind] for number, kind in enumerate(kinds)]


def unread(owners: Sequence[int | None]) -> Iterator[str]:
    """Yield the suffixes of unread tensors of layers with shared keys and values."""
    for number, owner in enumerate(owners):
        if owner is not None:
            for module in UNREAD:
                yield from (f".layers.{number}.self_attn.{module}.{kind}" for kind in ("weight", "bias"))
