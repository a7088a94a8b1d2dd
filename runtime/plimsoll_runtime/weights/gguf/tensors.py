"""A GGUF file's tensors under the names of Transformers, decoded to the dtype that the model runs in."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.weights.files import opened
from plimsoll_runtime.weights.gguf.metadata import ROPE_FACTORS, GgufTensor, read_metadata

PIECE = 2**21
"""Elements decoded at a time: the float32 copy of a large embedding never exists as a whole. Larger pieces leave the
processor's caches, smaller ones pay for more calls (a Q4_K_M of 270M in bfloat16: 3.0 s so, 4.7 with 2**23)."""

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA3_LAYER = _LAYER | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


class GgufTensors:
    """The tensors of one file. Raises ModelError naming a tensor that is cut short or of an unknown type.

    What llama.cpp changes when it converts is undone: the order of the rotated dimensions of queries and keys
    (Llama and Mistral), and the 1 that it adds to the norms (Gemma), which is taken off before any rounding.
    """

    def __init__(self, path: Path, config: Mapping[str, Any]) -> None:
        metadata = read_metadata(path)
        self._path = path
        self._arch = metadata.values["general.architecture"]
        self._heads = {
            "self_attn.q_proj": int(config["num_attention_heads"]),
            "self_attn.k_proj": int(config["num_key_value_heads"]),
        }
        self._tensors = {_name(self._arch, name): t for name, t in metadata.tensors.items() if name != ROPE_FACTORS}
        self.shapes = {name: t.shape for name, t in self._tensors.items()}
        with opened(path) as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._data = np.frombuffer(self._map, np.uint8)
        for name, tensor in self._tensors.items():
            self._check(name, tensor)

    def read(self, name: str, dtype: torch.dtype, *, keep: bool = False) -> Tensor:
        """One tensor, decoded piece by piece into memory of its own."""
        tensor = self._tensors[name]
        shifted = self._arch == "gemma3" and name.endswith("norm.weight")
        out = torch.empty(tensor.shape, dtype=torch.float32 if shifted else dtype)
        rows = out.view(-1, tensor.shape[-1])
        kind = gguf.GGMLQuantizationType(tensor.kind)
        stored = self._bytes(tensor).reshape(rows.shape[0], -1)
        step = max(1, PIECE // tensor.shape[-1])
        for first in range(0, rows.shape[0], step):
            rows[first : first + step] = _decode(stored[first : first + step], kind)
        self._release(tensor)
        return (out - 1).to(dtype) if shifted else self._unpair(name, out)

    def _release(self, tensor: GgufTensor) -> None:
        """Pages of the file that were read stay in the kernel's cache, but no longer count as this process's."""
        start = tensor.offset // mmap.PAGESIZE * mmap.PAGESIZE
        self._map.madvise(mmap.MADV_DONTNEED, start, tensor.offset + _size(tensor) - start)

    def _bytes(self, tensor: GgufTensor) -> NDArray[np.uint8]:
        return self._data[tensor.offset : tensor.offset + _size(tensor)]

    def _check(self, name: str, tensor: GgufTensor) -> None:
        if not _can_decode(tensor.kind):
            raise ModelError(f"{self._path.name}: {name} is of type {_kind_name(tensor.kind)}, which cannot be decoded")
        block, _ = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(tensor.kind)]
        if not tensor.shape or prod(tensor.shape) == 0 or tensor.shape[-1] % block:
            raise ModelError(
                f"{self._path.name}: {name} has the shape {list(tensor.shape)}, which {_kind_name(tensor.kind)} cannot"
                f" hold: its rows are stored in blocks of {block}"
            )
        end = tensor.offset + _size(tensor)
        if end > self._data.size:
            raise ModelError(f"{self._path.name} is cut short: {name} ends at byte {end}; fetch it again")

    def _unpair(self, name: str, tensor: Tensor) -> Tensor:
        """Queries and keys in the order in which Transformers rotates them."""
        if self._arch != "llama":
            return tensor
        heads = next((count for part, count in self._heads.items() if part in name), None)
        if heads is None:
            return tensor
        paired = tensor.view(heads, tensor.shape[0] // heads // 2, 2, *tensor.shape[1:])
        return paired.transpose(1, 2).reshape(tensor.shape)


def _name(arch: str, name: str) -> str:
    """Transformers' name; an unknown one stays as it is, and is refused as unexpected by whoever loads."""
    if name in _TOP:
        return _TOP[name]
    parts = name.split(".")
    layer = _GEMMA3_LAYER if arch == "gemma3" else _LAYER
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in layer:
        return f"model.layers.{parts[1]}.{layer[parts[2]]}.{parts[3]}"
    return name


def _size(tensor: GgufTensor) -> int:
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(tensor.kind)]
    return prod(tensor.shape) // block * size


@cache
def _can_decode(kind: int) -> bool:
    """Whether the gguf package can decode a type; it says so only when tried."""
    try:
        known = gguf.GGMLQuantizationType(kind)
        gguf.dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[known][1]), np.uint8), known)
    except (ValueError, KeyError, NotImplementedError):
        return False
    return True


def _kind_name(kind: int) -> str:
    known = {k.value: k.name for k in gguf.GGMLQuantizationType}
    return known.get(kind, f"{kind} (unknown)")


def _decode(stored: NDArray[np.uint8], kind: gguf.GGMLQuantizationType) -> Tensor:
    if kind is gguf.GGMLQuantizationType.BF16:
        return torch.from_numpy(stored.copy()).view(torch.bfloat16)
    decoded = gguf.dequantize(stored, kind)
    return torch.from_numpy(decoded if decoded.flags.writeable else decoded.copy())
