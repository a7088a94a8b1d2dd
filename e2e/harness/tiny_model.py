"""Models that start in seconds: random Llama weights and a word tokenizer, in a folder that nodes share."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RUNTIME = {"dtype": "float32", "kvMemory": "64MiB", "maxModelLen": 1024}
"""Runtime options of the tiny model."""
TEMPLATE = "{% for message in messages %}{{ message.content }} {% endfor %}"
"""Chat template that joins all messages."""
WORDS = 512
"""Size of the tokenizer's vocabulary of words: w0, w1, ..."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Shape of a Llama."""

    vocab: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int


TINY = Shape(vocab=WORDS, hidden=256, intermediate=512, layers=4, heads=4, kv_heads=2)
SMALL = Shape(vocab=32000, hidden=768, intermediate=2304, layers=12, heads=12, kv_heads=4)
"""The benchmarks' "small" model: 0.1 billion weights."""


def write_tiny_model(folder: Path, seed: int = 0, shape: Shape = TINY, *, broken: bool = False) -> None:
    """Write config, weights and tokenizer like Transformers, unless the folder exists. Models of different seeds give
    different outputs. A `broken` one loads but fails each request: a matrix has a number that is not finite. The folder
    appears complete or not at all, even with concurrent writers.
    """
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
        whole = Path(scratch) / folder.name
        _write(whole, seed, shape, broken=broken)
        try:
            whole.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was faster, with equal content
                raise


def _write(folder: Path, seed: int, shape: Shape, *, broken: bool) -> None:
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=2048,
        bos_token_id=1,
        eos_token_id=2,
    )
    dtype = torch.float32 if shape == TINY else torch.bfloat16
    model: Any = LlamaForCausalLM(config)
    if broken:
        model.model.layers[-1].mlp.down_proj.weight.data[0, 0] = float("nan")
    model.to(dtype).save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(shape.vocab)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    for file in (folder, *folder.rglob("*")):
        file.chmod(0o755 if file.is_dir() else 0o644)
