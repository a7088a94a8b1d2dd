"""GGUF files as another library reads them: the reference that our own reader is held to."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor

from plimsoll_runtime.weights.gguf.metadata import GgufTensor

ARCHITECTURES = {
    "LlamaConfig": gguf.MODEL_ARCH.LLAMA,
    "Qwen2Config": gguf.MODEL_ARCH.QWEN2,
    "Qwen3Config": gguf.MODEL_ARCH.QWEN3,
    "Gemma3TextConfig": gguf.MODEL_ARCH.GEMMA3,
}


def gguf_name(config: Any, name: str) -> str:
    """What llama.cpp calls a parameter of Transformers."""
    architecture = ARCHITECTURES[type(config).__name__]
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    found = names.get_name(name, try_suffixes=(".weight", ".bias"))
    assert found is not None, name
    return str(found)


def decoded_by_gguf(path: Path) -> dict[str, Tensor]:
    """Every tensor of a file in float32, read by the gguf package; slow where a vocabulary is in the file too."""
    reader = gguf.GGUFReader(path)
    return {t.name: torch.from_numpy(gguf.dequantize(t.data, t.tensor_type).copy()) for t in reader.tensors}


def decoded_by_place(path: Path, places: Mapping[str, GgufTensor]) -> dict[str, Tensor]:
    """Every tensor in float32, decoded by the gguf package from where our own reader says that it lies."""
    stored = np.memmap(path, np.uint8, "r")
    decoded = {}
    for name, place in places.items():
        block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(place.kind)]
        rows = stored[place.offset : place.offset + prod(place.shape) // block * size]
        values = gguf.dequantize(rows.reshape(prod(place.shape[:-1]), -1), gguf.GGMLQuantizationType(place.kind))
        decoded[name] = torch.from_numpy(values.copy()).reshape(place.shape)
    return decoded


def reference_of(config: Any, decoded: Mapping[str, Tensor]) -> Any:
    """The Transformers model, in float32, of the decoded tensors of a GGUF file."""
    import transformers

    build: Any = transformers.AutoModelForCausalLM.from_config
    with torch.device("meta"):
        empty = build(config, dtype=torch.float32)
    weights = {}
    for name, parameter in empty.named_parameters():
        tensor = decoded[gguf_name(config, name)]
        weights[name] = from_llama_cpp(config, name, tensor.reshape(parameter.shape))
    return type(empty).from_pretrained(None, config=config, state_dict=weights, dtype=torch.float32)


def from_llama_cpp(config: Any, name: str, tensor: Tensor) -> Tensor:
    """Undo what llama.cpp's converter does to a tensor of this name."""
    if config.model_type == "gemma3_text" and name.endswith("norm.weight"):
        return tensor - 1
    if heads := _permuted_heads(config, name):
        return tensor.reshape(heads, -1, 2, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)
    return tensor


def to_llama_cpp(config: Any, name: str, tensor: Tensor) -> Tensor:
    """What llama.cpp's converter makes of a tensor of this name."""
    if config.model_type == "gemma3_text" and name.endswith("norm.weight"):
        return tensor + 1
    if heads := _permuted_heads(config, name):
        return tensor.reshape(heads, 2, -1, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)
    return tensor


def _permuted_heads(config: Any, name: str) -> int | None:
    """llama.cpp rotates neighbours where Transformers rotates halves; for Llama the weights are reordered."""
    if config.model_type != "llama":
        return None
    if "q_proj" in name:
        return int(config.num_attention_heads)
    return int(config.num_key_value_heads) if "k_proj" in name else None
