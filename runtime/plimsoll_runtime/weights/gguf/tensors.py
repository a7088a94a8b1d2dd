"""Tensors of GGUF files under the names of Transformers."""

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
"""Tensors within a layer that the converter itself splits, joins or renames, and what a file may call each of them."""


def theirs_by_ours(arch: str, layers: int, wanted: Iterable[str], there: Collection[str]) -> dict[str, str]:
    """Ours, by the names of those tensors in the files that somebody wants."""
    kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(kind, layers)
    found = {}
    for ours in wanted:
        theirs = next((each for each in _names(names, ours) if each in there), None)
        if theirs is not None:
            found[theirs] = ours
    return found


def _names(names: gguf.TensorNameMap, name: str) -> Iterator[str]:
    """What a tensor may be called, the likeliest first; what has no suffix in Transformers has one there, or none."""
    if (match := re.fullmatch(r"(?:model|backbone)\.layers\.(\d+)\.(.+)", name)) and match[2] in PARTS:
        yield from (f"blk.{match[1]}.{part}" for part in PARTS[match[2]])
    asked = name.replace("e_score_correction_bias", "e_score_correction.bias")
    for each in (asked, asked.removeprefix("transformer.")):
        if (found := names.get_name(each, SUFFIXES)) is not None:
            yield found
            yield f"{found}.weight"


@dataclass(frozen=True, slots=True)
class KeysAndValues:
    """What makes each head's key, then its value, of two matrices of which the first is turned.

    Parts are those of `keys` [heads, rank, plain], whose names begin so, and of `values` [heads, value, rank].
    """

    keys: Scheme
    values: Scheme
    plain: int
    value: int

    def converted(self, parts: Parts, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """See Scheme: [heads x (plain + value), rank]."""
        width = self.plain + self.value
        heads, rank = shape[0] // width, shape[1]
        out = torch.empty(heads, width, rank, dtype=dtype)
        out[:, : self.plain] = self.keys.converted(_of("keys", parts), (heads, rank, self.plain), dtype).mT
        out[:, self.plain :] = self.values.converted(_of("values", parts), (heads, self.value, rank), dtype)
        return out.view(shape)

    def rows(self, parts: Parts, first: int, last: int) -> Parts:
        """See Scheme: of whole heads."""
        width = self.plain + self.value
        if first % width or last % width:
            raise ValueError(f"rows {first} to {last}: a head has {width}")
        first, last = first // width, last // width
        keys, values = (
            scheme.rows(_of(name, parts), first, last)
            for name, scheme in (("keys", self.keys), ("values", self.values))
        )
        return joined(keys, values)

    def columns(self, parts: Parts, first: int, last: int) -> Parts:
        """See Scheme: keys are turned, and are not cut."""
        raise ValueError(f"columns {first} to {last} of keys that lie turned")


def joined(keys: Parts, values: Parts) -> Parts:
    """Parts of both, as KeysAndValues has them."""
    return {
        f"{name}.{part}": tensor for name, own in (("keys", keys), ("values", values)) for part, tensor in own.items()
    }


def _of(name: str, parts: Parts) -> Parts:
    return {part.removeprefix(f"{name}."): tensor for part, tensor in parts.items() if part.startswith(f"{name}.")}


SMALL = (".A_log", ".D", "conv1d.weight", "conv.conv.weight", "mixer.norm.weight", "mamba.norm.weight")
"""How names of tensors of recurrent layers end whose shape llama.cpp changes; they are few numbers, in float32."""
UNSHIFTED = "linear_attn.norm.weight"
"""Norms to which no 1 is added where it is to all others."""


class GgufTensors:
    """The tensors of a file, or of several that are one model.

    `wanted`: what Transformers calls those that somebody asks for, with their shapes; others keep the names that they
    have. Raises ModelError naming a tensor that is cut short or of an unknown type.

    What llama.cpp changes when it converts is undone: the order of the rotated dimensions of queries and keys, the 1
    that it adds to norms, which is taken off before any rounding (see `families`), decays that it has the exponential
    of, and matrices that it has split.
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
        """See TensorSource: a matrix's blocks, and vectors in float32."""
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
        """Without the 1 that was added to norms."""
        shifted = self._family.shifted_norms and name.endswith("norm.weight") and not name.endswith(UNSHIFTED)
        return vector - 1 if shifted else vector

    def _unpaired(self, name: str, rows: Tensor) -> Tensor:
        """Rows of queries and keys in the order in which Transformers rotates them; of others as they are."""
        heads = next((count for part, count in self._heads.items() if f".{part}." in name), None)
        if heads is None:
            return rows
        paired = rows.view(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
        return paired.transpose(1, 2).reshape(rows.shape)


def _decay(name: str, values: Tensor) -> Tensor:
    """Of decays the logarithm that the config's class has. Raises ModelError for those that would grow."""
    if not name.endswith("A_log"):
        return values
    if not (values < 0).all():
        raise ModelError(f"{name} has decays that are not below 0: the file is damaged; fetch it again")
    return (-values).log()


def _halves(name: str, there: Mapping[str, object]) -> tuple[str, str] | None:
    """The names of the two matrices, of keys and of values, that a file has in the place of one kv_b_proj."""
    if (match := re.fullmatch(r"model\.layers\.(\d+)\.self_attn\.kv_b_proj\.weight", name)) is None:
        return None
    keys, values = (f"blk.{match[1]}.attn_{which}_b.weight" for which in "kv")
    return (keys, values) if name not in there and keys in there and values in there else None
