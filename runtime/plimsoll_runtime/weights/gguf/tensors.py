"""A GGUF file's tensors under the names of Transformers."""

from __future__ import annotations

import mmap
import warnings
from collections.abc import Iterable, Mapping
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
from plimsoll_runtime.weights.gguf.families import FAMILIES
from plimsoll_runtime.weights.gguf.metadata import ROPE_FACTORS, GgufTensor, read_metadata
from plimsoll_runtime.weights.stored import StoredTensor, plain


class GgufTensors:
    """The tensors of one file. Raises ModelError naming a tensor that is cut short or of an unknown type.

    `wanted`: what Transformers calls those that somebody asks for; others keep the names that they have.

    What llama.cpp changes when it converts is undone: the order of the rotated dimensions of queries and keys, and the
    1 that it adds to norms, which is taken off before any rounding (see `families`).
    """

    def __init__(self, path: Path, config: Mapping[str, Any], wanted: Iterable[str]) -> None:
        metadata = read_metadata(path)
        self._path = path
        arch = metadata.values["general.architecture"]
        self._family = FAMILIES[arch]
        self._heads = {
            "self_attn.q_proj": int(config["num_attention_heads"]),
            "self_attn.k_proj": int(config["num_key_value_heads"]),
        }
        ours = _names(arch, int(config["num_hidden_layers"]), wanted)
        self._tensors = {ours.get(name, name): t for name, t in metadata.tensors.items() if name != ROPE_FACTORS}
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
            shifted = self._family.shifted_norms and name.endswith("norm.weight")
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
        if not self._family.paired:
            return rows
        heads = next((count for part, count in self._heads.items() if part in name), None)
        if heads is None:
            return rows
        paired = rows.view(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
        return paired.transpose(1, 2).reshape(rows.shape)


def _names(arch: str, layers: int, wanted: Iterable[str]) -> dict[str, str]:
    """Transformers' names by those that llama.cpp has for them."""
    kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(kind, layers)
    found = {names.get_name(name, try_suffixes=(".weight", ".bias")): name for name in wanted}
    return {theirs: ours for theirs, ours in found.items() if theirs is not None}
