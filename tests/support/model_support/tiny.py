"""Small random models, saved as Transformers saves them, in which every part affects the result.

Fresh models hide mistakes: their norms are ones, their biases zeros, and their weights so small that no rope and no
window shows in the logits. Here all parameters are random, with a trained model's magnitude.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor

VOCAB = 20
"""As many log probabilities as a request may ask for, so that a report has the whole distribution."""

COMMON: Mapping[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


EMBEDDINGS = (
    "embed_tokens",
    "wte",
    "wpe",
    "embed_in",
    "word_embeddings",
    "embed_positions",
    "tokens_embed",
    "positions_embed",
)
"""Names of embedding tables of tokens and positions."""


SHIFTED = ("gemma", "gemma2", "gemma3_text", "nemotron")
"""Model types whose norms multiply by weight + 1; llama.cpp's converter adds the 1."""


def make_model(config_class: str, overrides: Mapping[str, Any], *, seed: int = 0) -> Any:
    """Build a Transformers model in float32 with random weights, biases and norms."""
    import transformers

    return build(getattr(transformers, config_class)(**{**COMMON, **overrides}), seed=seed)


def build(config: Any, auto: str = "AutoModelForCausalLM", *, seed: int = 0) -> Any:
    """Build the model of a config by a Transformers auto class."""
    import transformers

    make: Any = getattr(transformers, auto).from_config
    model = make(config, dtype=torch.float32)
    randomise(model, config, seed=seed)
    return model.eval()


def randomise(model: Any, config: Any, *, seed: int = 0) -> None:
    """Fill all parameters with random numbers; `config` is that of the text model."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(_random(name, parameter, config, generator))
        for name, buffer in model.named_buffers():
            if name.endswith(("correction_bias", "layer_scalar")):
                buffer.copy_(_random(name, buffer, config, generator))


def _random(name: str, parameter: Tensor, config: Any, generator: torch.Generator) -> Tensor:
    noise = torch.randn(parameter.shape, generator=generator)
    gemma = config.model_type.startswith("gemma")
    if name.endswith("bias"):
        return noise * 0.5
    if parameter.dim() == 1 or "norm" in name.rsplit(".", 2)[-2]:
        return noise * 0.3 + (0.0 if _is_offset(name, config) else 1.0)
    scale: float = 1.5 * parameter.shape[-1] ** -0.5
    if name.rsplit(".", 2)[-2] in EMBEDDINGS:
        scale = config.hidden_size**-0.5 if gemma else 0.5
    return noise * scale


def _is_offset(name: str, config: Any) -> bool:
    """Return whether a norm multiplies by weight + 1."""
    family: str = config.model_type
    if family.startswith(("qwen3_next", "qwen3_5")):
        return "norm" in name and not name.endswith("linear_attn.norm.weight")
    return family in SHIFTED


def save_model(model: Any, folder: Path, **options: Any) -> None:
    """Save a model, and a tokenizer of VOCAB words, in a folder."""
    model.save_pretrained(folder, **options)
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))


def edit_config(folder: Path, *, drop: tuple[str, ...] = (), **values: Any) -> None:
    """Change config.json: keys to drop, and keys to set."""
    path = folder / "config.json"
    config = {k: v for k, v in json.loads(path.read_text()).items() if k not in drop}
    path.write_text(json.dumps(config | values))


def prompts(lengths: tuple[int, ...], *, seed: int = 1, vocab: int = VOCAB) -> list[list[int]]:
    """Return random token ids."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, vocab, (n,), generator=generator).tolist() for n in lengths]
