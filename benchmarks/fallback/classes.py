"""Random models of each kind that run on Transformers code, large enough for their products to dominate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

VOCAB = 4096
_COMMON: Mapping[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 384,
    "intermediate_size": 1024,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 1024,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GPT: Mapping[str, Any] = {"n_embd": 384, "n_layer": 6, "n_head": 8, "n_positions": 1024}
_MAMBA: Mapping[str, Any] = {"mamba_d_state": 64, "mamba_n_heads": 12, "mamba_d_head": 64, "mamba_chunk_size": 64}
_LINEAR: Mapping[str, Any] = {
    "layer_types": ["linear_attention", "linear_attention", "full_attention"] * 2,
    "head_dim": 64,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
}


@dataclass(frozen=True)
class Class:
    """A config of Transformers: `config` is the name of its class, `values` its fields. `kind`: how the past of a
    sequence is kept between steps, for the table.
    """

    name: str
    kind: str
    config: str
    values: Mapping[str, Any]

    def made(self) -> Any:
        """Return the config, an instance of its class."""
        import transformers

        return getattr(transformers, self.config)(**{**_COMMON, **self.values})


CLASSES = (
    Class("Apertus", "our attention", "ApertusConfig", {}),
    Class("BioGPT", "our attention", "BioGptConfig", {}),
    Class("CodeGen", "a cache of keys and values", "CodeGenConfig", {**_GPT, "rotary_dim": 32}),
    Class(
        "XGLM",
        "a cache of keys and values",
        "XGLMConfig",
        {"d_model": 384, "ffn_dim": 1024, "num_layers": 6, "attention_heads": 8},
    ),
    Class("Doge", "a cache of keys and values", "DogeConfig", {}),
    Class("GPT-1", "no cache", "OpenAIGPTConfig", _GPT),
    Class("Mamba", "states", "MambaConfig", {}),
    Class("RWKV", "states, rows do not stack", "RwkvConfig", {"context_length": 1024}),
    Class("Bamba", "states, and keys and values", "BambaConfig", {**_MAMBA, "attn_layer_indices": [2, 5]}),
    Class("Qwen3.5 text", "states, and keys and values", "Qwen3_5TextConfig", _LINEAR),
)
