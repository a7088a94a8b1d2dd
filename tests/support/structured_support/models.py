"""A small random model whose vocabulary can spell any text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from model_support.tiny import make_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END = "</s>"
CORPUS = [
    '{"name": "text", "value": [1, 2, 3], "kind": true, "none": null, "p": {"a": false}}',
    '[{"id": 12, "items": ["a", "b"]}, "größe", "日本", "🙂"]',
    "the answer is 42, and the option is in the list of values",
]


def byte_tokenizer(size: int = 600) -> Tokenizer:
    """Return a byte-level tokenizer with all bytes, and pieces that are frequent in a small JSON corpus."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[END], initial_alphabet=alphabet, show_progress=False, min_frequency=1
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def spelling_model(folder: Path, *, padding: int = 24, **config: Any) -> Path:
    """Save a random Llama with a few more logits than its tokenizer has tokens. `config`: further fields of its
    config.
    """
    tokenizer = byte_tokenizer()
    size = tokenizer.get_vocab_size() + padding
    model = make_model("LlamaConfig", {"vocab_size": size, "bos_token_id": 0, "eos_token_id": 0, **config}, seed=3)
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}))
    return folder
