"""Small random embedding, classification and reranking models, saved with all files that the hub has."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from model_support import tiny
from model_support.tiny import COMMON
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors

WORDS = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "yes", "no", *"abcdefghijklmn"]
"""As many words as the models' tables have rows."""
OUTER = ("[CLS]", "[SEP]")
LONGEST = 140

SMALL_WINDOWS = {
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "head_dim": 16,
    "query_pre_attn_scalar": 16,
}


@dataclass(frozen=True)
class Kind:
    """A Transformers config class with its fields, and how its modules pool prompts."""

    config: str
    overrides: Mapping[str, Any] = field(default_factory=dict)
    pooling: str = "mean"

    def __str__(self) -> str:
        return f"{self.config.removesuffix('Config')}-{self.pooling}"


ENCODERS = (
    Kind("BertConfig", {"type_vocab_size": 2}),
    Kind("BertConfig", {"type_vocab_size": 2}, "cls"),
    Kind("RobertaConfig", {"pad_token_id": 0, "max_position_embeddings": LONGEST + 1, "type_vocab_size": 1}),
    Kind("XLMRobertaConfig", {"pad_token_id": 0, "max_position_embeddings": LONGEST + 1, "type_vocab_size": 1}, "cls"),
    Kind("ModernBertConfig", {"local_attention": 16, "num_hidden_layers": 4}),
    Kind("NomicBertConfig", {}),
    Kind("Gemma3TextConfig", {**SMALL_WINDOWS, "use_bidirectional_attention": True, "sliding_window": 16}),
)
DECODERS = (
    Kind("Qwen3Config", {"head_dim": 16}, "lasttoken"),
    Kind("Qwen3Config", {"head_dim": 16}, "mean"),
    Kind("LlamaConfig", {}, "lasttoken"),
    Kind("MistralConfig", {"sliding_window": 24}, "lasttoken"),
    Kind("MistralConfig", {"sliding_window": 24}, "cls"),
)
ALL = (*ENCODERS, *DECODERS)


def build(kind: Kind, auto: str = "AutoModel", *, seed: int = 0, **more: Any) -> Any:
    """Build a Transformers model in float32 with random weights, biases and norms."""
    import transformers

    # Heads of 16 dimensions, which our CPU kernels support.
    values = {
        **COMMON,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "pad_token_id": 0,
        "cls_token_id": 1,
        "sep_token_id": 2,
        **kind.overrides,
        **more,
    }
    if "Bert" in kind.config or "Roberta" in kind.config:
        del values["num_key_value_heads"]
    return tiny.build(getattr(transformers, kind.config)(**values), auto, seed=seed)


def save(model: Any, folder: Path, *, settings: Mapping[str, Any] | None = None) -> None:
    """Save a model with a tokenizer that has a token for each word, and distinguishes two texts if the model does."""
    model.save_pretrained(folder)
    save_tokenizer(folder, settings or {}, typed=getattr(model.config, "type_vocab_size", 1) > 1)


def save_tokenizer(folder: Path, settings: Mapping[str, Any], *, typed: bool = True) -> None:
    """Save a tokenizer with a token for each word."""
    names = ["input_ids", *(["token_type_ids"] if typed else []), "attention_mask"]
    second = int(typed)
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair=f"[CLS] $A [SEP] $B:{second} [SEP]:{second}",
        special_tokens=[(word, WORDS.index(word)) for word in OUTER],
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    said = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": names,
        "pad_token": "[PAD]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "unk_token": "[UNK]",
        **settings,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(said))


def add_modules(
    folder: Path,
    kind: Kind,
    width: int,
    *,
    dense: Sequence[tuple[int, str]] = (),
    normalise: bool = True,
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Write sentence-transformers files; `dense` are widths and activations of layers after the pooling."""
    modules = [_module(0, "", "Transformer"), _module(1, "1_Pooling", "Pooling")]
    flags = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
    names = {"cls": "cls_token", "mean": "mean_tokens", "lasttoken": "lasttoken"}
    pooling = {f"pooling_mode_{flag}": flag == names[kind.pooling] for flag in flags}
    _write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": width, **pooling, "include_prompt": True})
    generator = torch.Generator().manual_seed(7)
    for outputs, activation in dense:
        path = f"{len(modules)}_Dense"
        modules.append(_module(len(modules), path, "Dense"))
        config = {"in_features": width, "out_features": outputs, "bias": True, "activation_function": activation}
        _write(folder / path / "config.json", config)
        weight = torch.randn(outputs, width, generator=generator) * width**-0.5
        tensors = {"linear.weight": weight, "linear.bias": torch.randn(outputs, generator=generator)}
        save_file(tensors, folder / path / "model.safetensors")
        width = outputs
    if normalise:
        modules.append(_module(len(modules), f"{len(modules)}_Normalize", "Normalize"))
    _write(folder / "modules.json", modules)
    _write(folder / "sentence_bert_config.json", {"max_seq_length": LONGEST, "do_lower_case": False})
    said = {"prompts": {"query": "a b ", "document": "c "}, "default_prompt_name": None, **(settings or {})}
    _write(folder / "config_sentence_transformers.json", {**said, "similarity_fn_name": "cosine"})


def _module(index: int, path: str, kind: str) -> dict[str, Any]:
    return {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))


def texts(count: int, longest: int, seed: int = 0) -> list[str]:
    """Return random texts, short and long ones mixed."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest, (count,), generator=generator) ** 2 // longest + 1
    letters = WORDS[4:]
    return [
        " ".join(letters[i] for i in torch.randint(0, len(letters), (int(length),), generator=generator).tolist())
        for length in lengths
    ]
