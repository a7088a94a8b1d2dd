"""The model that is measured: "small", a Llama of 107 million random parameters, written once to the cache."""

from __future__ import annotations

import os
from pathlib import Path

VOCAB, HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS = 32000, 768, 2304, 12, 12, 4
HEAD_DIM = HIDDEN // HEADS
LAYER_PARAMETERS = HIDDEN * HEAD_DIM * (2 * HEADS + 2 * KV_HEADS) + 3 * HIDDEN * INTERMEDIATE
PARAMETERS = VOCAB * HIDDEN + LAYERS * LAYER_PARAMETERS


def small_model() -> Path:
    """The folder of the model, made if it is not there: safetensors, bfloat16, tied embeddings."""
    cache = Path(os.environ.get("PLIMSOLL_CACHE", Path.home() / ".cache" / "plimsoll"))
    folder = cache / "benchmarks" / "small-llama"
    if not (folder / "model.safetensors").is_file():
        _make(folder)
    return folder


def _make(folder: Path) -> None:
    import torch
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=INTERMEDIATE,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    config.dtype = torch.bfloat16
    LlamaForCausalLM(config).bfloat16().save_pretrained(folder)
    words = {f"w{i}": i for i in range(VOCAB)}
    Tokenizer(models.WordLevel(words, unk_token="w0")).save(str(folder / "tokenizer.json"))
