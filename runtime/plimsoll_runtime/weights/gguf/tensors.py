"""Tensors of GGUF files under their names in Transformers."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import gguf
import torch
from torch import Tensor

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.weights.gguf.blocks import GgufBlocks, MappedFile
from plimsoll_runtime.weights.gguf.families import family_of
from plimsoll_runtime.weights.gguf.metadata import ROPE_FACTORS
from plimsoll_runtime.weights.stored_tensor import Parts, Scheme, StoredTensor, plain

SUFFIXES = (".weight", ".bias")
_GATE, _UP, _DOWN = "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"
PARTS: Mapping[str, tuple[str, ...]] = {
    "block_sparse_moe.input_linear.gate.weight": (f"{_GATE}.weight",),
    "block_sparse_moe.input_linear.up.weight": (f"{_UP}.weight",),
    "shared_mlp.input_linear.gate.weight": ("ffn_gate_shexp.weight", "ffn_gate.weight"),
    "shared_mlp.input_linear.up.weight": ("ffn_up_shexp.weight", "ffn_up.weight"),
    "shared_mlp.output_linear.weight": ("ffn_down_shexp.weight", "ffn_down.weight"),
    "mlp.experts.gate_up_proj.gate": (f"{_GATE}.weight",),
    "mlp.experts.gate_up_proj.up": (f"{_UP}.weight",),
    "mlp.experts.down_proj": (f"{_DOWN}.weight",),
    "mlp.experts.gate_up_proj.gate_bias": (f"{_GATE}.bias",),
    "mlp.experts.gate_up_proj.up_bias": (f"{_UP}.bias",),
    "mlp.experts.down_proj_bias": (f"{_DOWN}.bias",),
    "feed_forward.experts.w1.weight": (f"{_GATE}.weight",),
    "feed_forward.experts.w3.weight": (f"{_UP}.weight",),
    "feed_forward.experts.w2.weight": (f"{_DOWN}.weight",),
    "feed_forward.expert_bias": ("exp_probs_b.bias",),
    "mixer.experts.up_proj.weight": (f"{_UP}.weight",),
    "mixer.experts.down_proj.weight": (f"{_DOWN}.weight",),
    "router.scale": ("ffn_gate_inp.scale",),
    "router.per_expert_scale": (f"{_DOWN}.scale",),
    "linear_attn.in_proj_qkv.weight": ("attn_qkv.weight",),
    "linear_attn.in_proj_z.weight": ("attn_gate.weight",),
    "linear_attn.dt_bias": ("ssm_dt.bias",),
    "mamba.dt_bias": ("ssm_dt.bias",),
    "mixer.dt_bias": ("ssm_dt.bias",),
}
"""Tensors of a layer that the converter splits, joins or renames itself, and their possible names in a file."""


def theirs_by_ours(arch: str, layers: int, wanted: Iterable[str], there: Collection[str]) -> dict[str, str]:
    """Return a map from tensor names in the files (`there`) to Transformers' names, for `wanted` ones that exist."""
    kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(kind, layers)
    found = {}
    for ours in wanted:
        theirs = next((each for each in _names(names, ours) if each in there), None)
        if theirs is not None:
            found[theirs] = ours
    return found


def _names(names: gguf.TensorNameMap, name: str) -> Iterator[str]:
    """Yield the possible GGUF names of a tensor, the likeliest first.

    A name without a suffix in Transformers may have the suffix .weight in the file.
    """
    if (match := re.fullmatch(r"(?:model|backbone)\.layers\.(\d+)\.(.+)", name)) and match[2] in PARTS:
        yield from (f"blk.{match[1]}.{part}" for part in PARTS[match[2]])
    asked = name.replace("e_score_correction_bias", "e_score_correction.bias")
    for each in (asked, asked.removeprefix("transformer.")):
        if (found := names.get_name(each, SUFFIXES)) is not None:
            yield found
            yield f"{found}.weight"


@dataclass(frozen=True, slots=True)
class KeysAndValues:
    """Scheme of a kv_b_proj that a file has as two matrices. It has for each head `plain` rows of keys, then `value`
    rows of values; the file stores keys transposed.

    The components are those of the scheme `keys` [heads, rank, plain] with the prefix "keys.", and those of the scheme
    `values` [heads, value, rank] with the prefix "values.".
    """

    keys: Scheme
    values: Scheme
    plain: int
    value: int

    def converted(self, parts: Parts, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return [heads x (plain + value), rank]."""
        width = self.plain + self.value
        heads, rank = shape[0] // width, shape[1]
        out = torch.empty(heads, width, rank, dtype=dtype)
        out[:, : self.plain] = self.keys.converted(_of("keys", parts), (heads, rank, self.plain), dtype).mT
        out[:, self.plain :] = self.values.converted(_of("values", parts), (heads, self.value, rank), dtype)
        return out.view(shape)

    def rows(self, parts: Parts, first: int, last: int) -> Parts:
        """Return the components of whole heads. Raises ValueError if a head would be cut."""
        width = self.plain + self.value
        if first % width or last % width:
            raise ValueError(f"rows {first} to {last}: a head of {width} rows would be cut")
        first, last = first // width, last // width
        keys, values = (
            scheme.rows(_of(name, parts), first, last)
            for name, scheme in (("keys", self.keys), ("values", self.values))
        )
        return joined(keys, values)

    def columns(self, parts: Parts, first: int, last: int) -> Parts:
        """Raise ValueError: keys are stored transposed and cannot be cut by columns."""
        raise ValueError(f"columns {first} to {last}: keys are stored transposed and cannot be cut")


def joined(keys: Parts, values: Parts) -> Parts:
    """Join the components of both matrices with the prefixes that KeysAndValues uses."""
    return {
        f"{name}.{part}": tensor for name, own in (("keys", keys), ("values", values)) for part, tensor in own.items()
    }


def _of(name: str, parts: Parts) -> Parts:
    return {part.removeprefix(f"{name}."): tensor for part, tensor in parts.items() if part.startswith(f"{name}.")}


SMALL = (".A_log", ".D", "conv1d.weight", "conv.conv.weight", "mixer.norm.weight", "mamba.norm.weight")
"""Name suffixes of small float32 tensors of recurrent layers whose shape llama.cpp changes."""
UNSHIFTED = "linear_attn.norm.weight"
"""Norms without an added 1 in files whose other norms have it."""


class GgufTensors:
    """The tensors of a GGUF model in one or several files.

    `wanted` has Transformers' names and shapes of the tensors to load; other tensors keep their GGUF names. Raises
    ModelError naming a tensor that is truncated or of an unknown type.

    Reverts what llama.cpp's converter changes: the order of rotated dimensions of queries and keys, the 1 added to norm
    weights (subtracted before any rounding), exponentiated decays, and split matrices.
    """

    def __init__(self, paths: Sequence[Path], config: Mapping[str, Any], wanted: Mapping[str, tuple[int, ...]]) -> None:
        files = [MappedFile(path) for path in paths]
        arch = files[0].metadata.values["general.architecture"]
        self._family = family_of(files[0].metadata.values)
        self._heads = {}
        if self._family.paired:
            self._heads = {
                "q_proj": int(config["num_attention_heads"]),
                "k_proj": int(config["num_key_value_heads"]),
            }
        there = {name: (file, tensor) for file in files for name, tensor in file.metadata.tensors.items()}
        there.pop(ROPE_FACTORS, None)
        ours = theirs_by_ours(arch, int(config["num_hidden_layers"]), wanted, there)
        self._tensors = {ours.get(name, name): found for name, found in there.items()}
        self._kinds = {name: file.checked(name, tensor) for name, (file, tensor) in self._tensors.items()}
        self._small = {
            name: wanted[name]
            for name, (_, tensor) in self._tensors.items()
            if name in wanted and name.endswith(SMALL) and prod(wanted[name]) == prod(tensor.shape)
        }
        self._halves = {name: halves for name in wanted if (halves := _halves(name, self._tensors)) is not None}
        apart = {half for halves in self._halves.values() for half in halves}
        self.shapes = {name: tensor.shape for name, (_, tensor) in self._tensors.items() if name not in apart}
        self.shapes |= self._small | {name: self._joined_shape(*halves) for name, halves in self._halves.items()}

    def stored(self, name: str) -> StoredTensor:
        """Return a matrix in its GGUF blocks, and a vector or a tensor of SMALL in float32."""
        if name in self._halves:
            return self._joined(name, *self._halves[name])
        found = self._found(name)
        if name in self._small:
            values = found.converted(torch.float32)
            return plain(self._shifted(name, _decay(name, values)).reshape(self._small[name]))
        if len(found.shape) == 1:
            return plain(self._unpaired(name, self._shifted(name, found.converted(torch.float32))))
        blocks = found.parts["blocks"]
        unpaired = self._unpaired(name, blocks)
        if unpaired is blocks:
            return found
        found.released()
        return StoredTensor(found.scheme, found.shape, {"blocks": unpaired})

    def _found(self, name: str) -> StoredTensor:
        (file, tensor), kind = self._tensors[name], self._kinds[name]
        blocks, release = file.blocks(tensor, kind)
        return StoredTensor(GgufBlocks(kind), tensor.shape, {"blocks": blocks}, release)

    def _joined_shape(self, keys: str, values: str) -> tuple[int, ...]:
        (_, key), (_, value) = self._tensors[keys], self._tensors[values]
        match key.shape, value.shape:
            case (heads, rank, plain), (others, width, columns) if (heads, rank) == (others, columns):
                return heads * (plain + width), rank
        raise ModelError(f"{keys} has the shape {list(key.shape)}, and {values} {list(value.shape)}")

    def _joined(self, name: str, keys: str, values: str) -> StoredTensor:
        key, value = self._found(keys), self._found(values)

        def release() -> None:
            key.released()
            value.released()

        scheme = KeysAndValues(key.scheme, value.scheme, key.shape[2], value.shape[1])
        return StoredTensor(scheme, self.shapes[name], joined(key.parts, value.parts), release)

    def _shifted(self, name: str, vector: Tensor) -> Tensor:
        """Subtract the 1 that the converter added to norms."""
        shifted = self._family.shifted_norms and name.endswith("norm.weight") and not name.endswith(UNSHIFTED)
        return vector - 1 if shifted else vector

    def _unpaired(self, name: str, rows: Tensor) -> Tensor:
        """Restore Transformers' order of the rotated rows of queries and keys; return other tensors unchanged."""
        heads = next((count for part, count in self._heads.items() if f".{part}." in name), None)
        if heads is None:
            return rows
        paired = rows.view(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
        return paired.transpose(1, 2).reshape(rows.shape)


def _decay(name: str, values: Tensor) -> Tensor:
    """Return A_log, as in Transformers, from the stored decays -exp(A_log); return other tensors unchanged.

    Raises ModelError if a decay is not negative.
    """
    if not name.endswith("A_log"):
        return values
    if not (values < 0).all():
        raise ModelError(f"{name} has values that are not below 0: the file is damaged; download it again")
    return (-values).log()


def _halves(name: str, there: Mapping[str, object]) -> tuple[str, str] | None:
    """Return the names of the two matrices that a file has instead of a kv_b_proj, if it has both."""
    if (match := re.fullmatch(r"model\.layers\.(\d+)\.self_attn\.kv_b_proj\.weight", name)) is None:
        return None
    keys, values = (f"blk.{match[1]}.attn_{which}_b.weight" for which in "kv")
    return (keys, values) if name not in there and keys in there and values in there else None
