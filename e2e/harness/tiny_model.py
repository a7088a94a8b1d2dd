"""A model that starts in seconds: random Llama weights, a word tokenizer, a folder that nodes share."""

from __future__ import annotations

from pathlib import Path

VOCAB = 512
RUNTIME = {"dtype": "float32", "kvMemory": "64MiB", "maxModelLen": 1024}
"""Options under which it is served."""


def write_tiny_model(folder: Path, seed: int = 0) -> None:
    """Write config, weights and tokenizer as Transformers would; does nothing when they are there.

    Models of different seeds answer differently.
    """
    if (folder / "model.safetensors").is_file():
        return
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        bos_token_id=1,
        eos_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    for file in folder.rglob("*"):
        file.chmod(0o755 if file.is_dir() else 0o644)
