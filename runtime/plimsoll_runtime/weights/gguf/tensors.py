"""GGUF files' tensors under the names of Transformers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import torch
from torch import Tensor

from plimsoll_runtime.weights.gguf.blocks import GgufBlocks
from plimsoll_runtime.weights.gguf.families import family_of
from plimsoll_runtime.weights.gguf.mapped import MappedFile
from plimsoll_runtime.weights.gguf.metadata import ROPE_FACTORS
from plimsoll_runtime.weights.stored import StoredTensor, plain

SUFFIXES = (".weight", ".bias")


class GgufTensors:
    """The tensors of a file, or of several that are one model.

    `wanted`: what Transformers calls those that somebody asks for; others keep the names that they have.
    Raises ModelError naming a tensor that is cut short or of an unknown type.

    What llama.cpp changes when it converts is undone: the order of the rotated dimensions of queries and keys, and the
    1 that it adds to norms, which is taken off before any rounding (see `families`).
    """

    def __init__(self, paths: Sequence[Path], config: Mapping[str, Any], wanted: Iterable[str]) -> None:
        files = [MappedFile(path) for path in paths]
        arch = files[0].metadata.values["general.architecture"]
        self._family = family_of(files[0].metadata.values)
        self._heads = {
            "self_attn.q_proj": int(config["num_attention_heads"]),
            "self_attn.k_proj": int(config["num_key_value_heads"]),
        }
        ours = _names(arch, int(config["num_hidden_layers"]), wanted)
        self._tensors = {
            ours.get(name, name): (file, tensor)
            for file in files
            for name, tensor in file.metadata.tensors.items()
            if name != ROPE_FACTORS
        }
        self.shapes = {name: tensor.shape for name, (_, tensor) in self._tensors.items()}
        self._kinds = {name: file.checked(name, tensor) for name, (file, tensor) in self._tensors.items()}

    def stored(self, name: str) -> StoredTensor:
        """See TensorSource: a matrix's blocks, and vectors in float32."""
        (file, tensor), kind = self._tensors[name], self._kinds[name]
        blocks, release = file.blocks(tensor, kind)
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

    def _unpaired(self, name: str, rows: Tensor) -> Tensor:
        """Rows of queries and keys in the order in which Transformers rotates them; of others as they are."""
        if not self._family.paired:
            return rows
        heads = next((count for part, count in self._heads.items() if part in name), None)
        if heads is None:
            return rows
        paired = rows.view(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
        return paired.transpose(1, 2).reshape(rows.shape)


PARTS = {
    "block_sparse_moe.input_linear.gate": "ffn_gate_exps",
    "block_sparse_moe.input_linear.up": "ffn_up_exps",
    "shared_mlp.input_linear.gate": "ffn_gate_shexp",
    "shared_mlp.input_linear.up": "ffn_up_shexp",
}
"""What the converter splits before it asks for a name (see models.families.converted)."""


def _names(arch: str, layers: int, wanted: Iterable[str]) -> dict[str, str]:
    """Transformers' names by those that llama.cpp has for them."""
    kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(kind, layers)
    found = {_name(names, name): name for name in wanted}
    return {theirs: ours for theirs, ours in found.items() if theirs is not None}


def _name(names: gguf.TensorNameMap, name: str) -> str | None:
    if (match := re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.weight", name)) and match[2] in PARTS:
        return f"blk.{match[1]}.{PARTS[match[2]]}.weight"
    asked = name.replace("e_score_correction_bias", "e_score_correction.bias")
    found: str | None = next(
        filter(None, (names.get_name(each, SUFFIXES) for each in (asked, asked.removeprefix("transformer.")))), None
    )
    return found
