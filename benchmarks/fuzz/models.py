"""Tiny models with random weights and one token per byte, written as files: one generates, two do not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

SPECIALS = ("<s>", "</s>", "<|user|>", "<|assistant|>", "<pad>")
VOCAB = 264
HIDDEN, INNER, HEADS, KV_HEADS, LAYERS = 32, 64, 2, 1, 2
CONTEXT = 512
LABELS = ("good", "bad", "neither")
KV_BYTES = 2 * LAYERS * KV_HEADS * (HIDDEN // HEADS) * 4
"""Bytes of a token in the cache."""
TEMPLATE = (
    '{{ bos_token }}{% if tools %}<|system|>Call as <tool_call>{"name": NAME, "arguments": {}}</tool_call>: '
    "{{ tools | tojson }}{% endif %}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls or "
    "[] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_CONFIG: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "num_hidden_layers": LAYERS,
    "vocab_size": VOCAB,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": 260,
    "torch_dtype": "float32",
}


def write_generator(folder: Path) -> None:
    """Write a chat model, with a template that supports tools."""
    _write(folder, {}, {"lm_head.weight": (VOCAB, HIDDEN)}, {"chat_template": TEMPLATE})


def write_embedder(folder: Path) -> None:
    """Write an embedding model, with the files of sentence-transformers that mark it as one."""
    _write(folder, {}, {"lm_head.weight": (VOCAB, HIDDEN)}, {})
    kinds = ("Transformer", "Pooling", "Normalize")
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": HIDDEN, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


def write_classifier(folder: Path) -> None:
    """Write a model that labels texts."""
    labels = {
        "architectures": ["LlamaForSequenceClassification"],
        "id2label": {str(index): label for index, label in enumerate(LABELS)},
        "label2id": {label: index for index, label in enumerate(LABELS)},
    }
    _write(folder, labels, {"score.weight": (len(LABELS), HIDDEN)}, {})


def _write(
    folder: Path, config: Mapping[str, Any], head: Mapping[str, tuple[int, int]], settings: Mapping[str, Any]
) -> None:
    folder.mkdir(parents=True)
    width = HIDDEN // HEADS
    shapes = {"model.embed_tokens.weight": (VOCAB, HIDDEN), **head}
    for layer in range(LAYERS):
        matrices = {
            "self_attn.q_proj": (HEADS * width, HIDDEN),
            "self_attn.k_proj": (KV_HEADS * width, HIDDEN),
            "self_attn.v_proj": (KV_HEADS * width, HIDDEN),
            "self_attn.o_proj": (HIDDEN, HEADS * width),
            "mlp.gate_proj": (INNER, HIDDEN),
            "mlp.up_proj": (INNER, HIDDEN),
            "mlp.down_proj": (HIDDEN, INNER),
        }
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in matrices.items()}
    rng = np.random.default_rng(0)
    tensors = {
        name: (rng.standard_normal(shape) * 1.5 / shape[-1] ** 0.5).astype(np.float32) for name, shape in shapes.items()
    }
    norms = ["model.norm.weight"]
    norms += [
        f"model.layers.{layer}.{norm}.weight"
        for layer in range(LAYERS)
        for norm in ("input_layernorm", "post_attention_layernorm")
    ]
    tensors |= {name: np.ones(HIDDEN, np.float32) for name in norms}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**_CONFIG, **config}))
    _write_tokenizer(folder, settings)


def _write_tokenizer(folder: Path, settings: Mapping[str, Any]) -> None:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    specials = {token: 256 + index for index, token in enumerate(SPECIALS)}
    content = {
        "version": "1.0",
        "added_tokens": [{"id": i, "content": token, **flags, "special": True} for token, i in specials.items()],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {"type": "BPE", "vocab": _bytes() | specials, "merges": []},
    }
    said = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", **settings}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    (folder / "tokenizer_config.json").write_text(json.dumps(said))


def _bytes() -> dict[str, int]:
    """Return the vocabulary of the 256 bytes: the character that stands for a byte in byte-level vocabularies (as in
    GPT-2) -> the byte, which is the token's id.
    """
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte if byte in shown else 256 + hidden.index(byte)): byte for byte in range(256)}
