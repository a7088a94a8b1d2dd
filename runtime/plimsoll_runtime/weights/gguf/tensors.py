"""A GGUF file's tensors under the names of Transformers."""

from __future__ import annotations

import mmap
import warnings
from collections.abc import Mapping
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import gguf
import torch
from gguf import GGMLQuantizationType
from torch import Tensor

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.weights.files import opened
from plimsoll_runtime.weights.gguf.blocks import GgufBlocks, kind_name, kind_of, stored_bytes
from plimsoll_runtime.weights.gguf.metadata import ROPE_FACTORS, GgufTensor, read_metadata
from plimsoll_runtime.weights.stored import StoredTensor, plain

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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # nobody writes there, as torch fears
            self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)
        self._kinds = {name: self._checked(name, tensor) for name, tensor in self._tensors.items()}

    def stored(self, name: str) -> StoredTensor:
        """See TensorSource: a matrix's blocks, and vectors in float32."""
        tensor, kind = self._tensors[name], self._kinds[name]
        size = stored_bytes(kind, tensor.shape)
        columns = tensor.shape[-1]
        blocks = self._bytes[tensor.offset : tensor.offset + size].view(prod(tensor.shape) // columns, -1)
        release = partial(self._release, tensor.offset, size)
        found = StoredTensor(GgufBlocks(kind), tensor.shape, {"blocks": blocks}, release)
        if len(tensor.shape) == 1:
            vector = found.converted(torch.float32)
            shifted = self._arch == "gemma3" and name.endswith("norm.weight")
            return plain(vector - 1 if shifted else self._unpaired(name, vector))
        unpaired = self._unpaired(name, blocks)
        if unpaired is blocks:
            return found
        found.released()
        return StoredTensor(found.scheme, found.shape, {"blocks": unpaired})

    def _release(self, offset: int, size: int) -> None:
        """Pages of the file that were read stay in the kernel's cache, but no longer count as this process's."""
        start = offset // mmap.PAGESIZE * mmap.PAGESIZE
        self._map.madvise(mmap.MADV_DONTNEED, start, offset + size - start)

    def _checked(self, name: str, tensor: GgufTensor) -> GGMLQuantizationType:
        kind = kind_of(tensor.kind)
        if kind is None:
            raise ModelError(f"{self._path.name}: {name} is of type {kind_name(tensor.kind)}, which cannot be decoded")
        block, _ = gguf.GGML_QUANT_SIZES[kind]
        if not tensor.shape or prod(tensor.shape) == 0 or tensor.shape[-1] % block:
            raise ModelError(
                f"{self._path.name}: {name} has the shape {list(tensor.shape)}, which {kind.name} cannot"
                f" hold: its rows are stored in blocks of {block}"
            )
        end = tensor.offset + stored_bytes(kind, tensor.shape)
        if end > self._bytes.numel():
            raise ModelError(f"{self._path.name} is cut short: {name} ends at byte {end}; fetch it again")
        return kind

    def _unpaired(self, name: str, rows: Tensor) -> Tensor:
        """Rows of queries and keys in the order in which Transformers rotates them; of others as they are."""
        if self._arch != "llama":
            return rows
        heads = next((count for part, count in self._heads.items() if part in name), None)
        if heads is None:
            return rows
        paired = rows.view(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
        return paired.transpose(1, 2).reshape(rows.shape)


def _name(arch: str, name: str) -> str:
    """Transformers' name; an unknown one stays as it is, and is refused as unexpected by whoever loads."""
    if name in _TOP:
        return _TOP[name]
    parts = name.split(".")
    layer = _GEMMA3_LAYER if arch == "gemma3" else _LAYER
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in layer:
        return f"model.layers.{parts[1]}.{layer[parts[2]]}.{parts[3]}"
    return name
