"""NomicBERT (Nussbaum et al., 2024): BERT with RoPE, gated MLPs and no biases.

Configs use the names of its authors' code or those of Transformers; tensors have the authors' names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll_runtime.errors import UnsupportedFieldError
from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.encoder import HEADS_OF_TRAINING, bert_head, layer_norm, norms_behind
from plimsoll_runtime.models.families.common.gpt import renamed
from plimsoll_runtime.models.spec.decoder import DecoderSpec, Embedding
from plimsoll_runtime.models.spec.feed_forward import GatedMlp
from plimsoll_runtime.models.spec.pooling import Pooling
from plimsoll_runtime.models.spec.tensor_names import Names

DEFAULTS = {"vocab_size": 30_528, "type_vocab_size": 2, "max_position_embeddings": 2048, "hidden_act": "silu"}
"""Defaults of missing fields."""
THETA = 1000.0
PREFIX = "nomic_bert"
FIELDS = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "layer_norm_epsilon": "layer_norm_eps",
    "rotary_emb_base": "rope_theta",
    "max_trained_positions": "max_position_embeddings",
}
"""Field names of its authors' code."""
NAMES = Names(
    embedding=f"{PREFIX}.embeddings.word_embeddings",
    texts=f"{PREFIX}.embeddings.token_type_embeddings",
    embedding_norm=f"{PREFIX}.emb_ln",
    layer=f"{PREFIX}.encoder.layers.{{}}",
    query_key_value=("attn.Wqkv",),
    output="attn.out_proj",
    gate_up=("mlp.fc12", "mlp.fc11"),
    down="mlp.fc2",
    norms=("", "norm1", "", "norm2"),
    beyond=(*HEADS_OF_TRAINING, f"{PREFIX}.pooler."),
)


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of NomicBertModel. The context ends at the training length, beyond which its rotation changes."""
    config = Config(renamed(values, FIELDS, DEFAULTS))
    _check_authors(config)
    _, _, head_dim = config.heads()
    return norms_behind(
        "NomicBertModel",
        config,
        GatedMlp(config.get("intermediate_size", int), config.activation("hidden_act")),
        Embedding(texts=config.get("type_vocab_size", int), norm=layer_norm(config)),
        NAMES,
        max_positions=config.get("max_position_embeddings", int),
        rope=config.rope(head_dim, theta=THETA),
        bias=False,
    )


def head(values: Mapping[str, Any], labels: int) -> Pooling:
    """Return the pooling of NomicBertForSequenceClassification."""
    return bert_head(Config(renamed(values, FIELDS, DEFAULTS)), PREFIX, labels)


def _check_authors(config: Config) -> None:
    """Raise UnsupportedFieldError for features of the authors' code that released models do not use."""
    config.refuse_unless(
        activation_function="swiglu",
        prenorm=False,
        parallel_block=False,
        qkv_proj_bias=False,
        mlp_fc1_bias=False,
        mlp_fc2_bias=False,
        rotary_emb_fraction=1.0,
        rotary_emb_interleaved=False,
        rotary_emb_scale_base=None,
        use_rms_norm=False,
        causal=False,
        num_experts=0,
    )
    if config.values.get("rope_scaling") is not None:
        raise UnsupportedFieldError("config.json: rope_scaling is not supported for NomicBERT")
