"""Quantised tensors of safetensors files: MXFP4, and eight-bit values with scales. Joins a matrix and its scales."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.weights.quantisation import MXFP4, Quantisation
from plimsoll_runtime.weights.safetensors import FLOATS, SafetensorsFiles
from plimsoll_runtime.weights.stored_tensor import Parts, StoredTensor, dtype_name, in_pieces

BLOCK, BYTES = 32, 16
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_NUMBERS = torch.tensor([*_MAGNITUDES, *(-magnitude for magnitude in _MAGNITUDES)])
_PAIRS = torch.stack([_NUMBERS.repeat(16), _NUMBERS.repeat_interleave(16)], dim=1)
"""The two numbers of each byte, that of the lower bits first: [256, 2]."""
_SCALES = torch.tensor([*(2.0 ** (exponent - 127) for exponent in range(255)), torch.nan])


@dataclass(frozen=True, slots=True)
class Mxfp4:
    """Scheme with the components "blocks" uint8 [..., rows, blocks, 16] and "exponents" uint8 [..., rows, blocks].

    MXFP4 (OCP Microscaling Formats, 2023) has four-bit numbers; 32 of them share an eight-bit exponent.
    """

    def converted(self, parts: Parts, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Decode in pieces. The numbers are exact in bfloat16 and in float32."""
        blocks, exponents = parts["blocks"].flatten(0, -3), parts["exponents"].flatten(0, -2)
        return in_pieces(shape, dtype, lambda first, last: _numbers(blocks[first:last], exponents[first:last]))

    def rows(self, parts: Parts, first: int, last: int) -> Parts:
        return {name: part[first:last] for name, part in parts.items()}

    def columns(self, parts: Parts, first: int, last: int) -> Parts:
        """Return the components of some columns. Raises ValueError if a block would be cut."""
        if first % BLOCK or last % BLOCK:
            raise ValueError(f"columns {first} to {last}: MXFP4 has blocks of {BLOCK} columns")
        first, last = first // BLOCK, last // BLOCK
        return {"blocks": parts["blocks"][..., first:last, :], "exponents": parts["exponents"][..., first:last]}


def exponential(exponents: Tensor) -> Tensor:
    """Return the float32 scales of stored exponents (E8M0)."""
    return _SCALES[exponents.int()]


def _numbers(blocks: Tensor, exponents: Tensor) -> Tensor:
    """Return the dequantised numbers: float32 [rows, columns]."""
    found = _PAIRS[blocks.int()].flatten(-2)
    return found.mul_(exponential(exponents)[..., None]).flatten(1)


@dataclass(frozen=True, slots=True)
class Scaled:
    """Scheme with the components "values" [..., rows, columns] and "scales" float32 [..., rows, groups].

    Each scale applies to `run` columns.
    """

    run: int

    def converted(self, parts: Parts, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Multiply values and scales in float32, in pieces."""
        values, scales = parts["values"].flatten(0, -2), parts["scales"].flatten(0, -2)
        return in_pieces(shape, dtype, lambda first, last: self._multiplied(values[first:last], scales[first:last]))

    def rows(self, parts: Parts, first: int, last: int) -> Parts:
        return {name: part[first:last] for name, part in parts.items()}

    def columns(self, parts: Parts, first: int, last: int) -> Parts:
        """Return the components of some columns. Raises ValueError if a group other than the last would be cut."""
        end = parts["values"].shape[-1]
        if first % self.run or (last % self.run and last != end):
            raise ValueError(f"columns {first} to {last}: a scale applies to {self.run} columns, which cannot be cut")
        return {
            "values": parts["values"][..., first:last],
            "scales": parts["scales"][..., first // self.run : -(-last // self.run)],
        }

    def _multiplied(self, values: Tensor, scales: Tensor) -> Tensor:
        found = values.float()
        whole = found.shape[1] // self.run
        if whole:
            found[:, : whole * self.run].view(len(found), whole, self.run).mul_(scales[:, :whole, None])
        if whole < scales.shape[1]:
            found[:, whole * self.run :].mul_(scales[:, whole:])
        return found


SCALES = ("_scale_inv", "_scale")
NARROW = (torch.float8_e4m3fn, torch.int8)
"""Types of scaled matrices."""
BESIDE = ("input_scale", "input_scale_ub", "activation_scale", "output_scale", "q_scale", "k_scale", "v_scale")
"""Name suffixes of scales that belong to activations or caches."""


class QuantisedTensors:
    """A TensorSource of quantised files. Raises ModelError naming a matrix whose scales are missing or do not fit.

    `NAME_blocks` and `NAME_scales` are the MXFP4 components of NAME. `NAME_scale` or `NAME_scale_inv` has the factors
    of a scaled matrix NAME. Scales of activations and caches are left out: they do not affect weights.
    """

    def __init__(self, files: SafetensorsFiles, quantisation: Quantisation) -> None:
        self._files = files
        self._block = quantisation.block
        self._packed, self._scales = _packed(files, quantisation), _scales_of(files)
        for name, scale in self._scales.items():
            self._runs(name, scale)
        within = {f"{name}{end}" for name in self._packed for end in ("_blocks", "_scales")}
        within |= set(self._scales.values())
        self.shapes: Mapping[str, tuple[int, ...]] = self._packed | {
            name: shape
            for name, shape in files.shapes.items()
            if name not in within and not name.endswith(tuple(f".{end}" for end in BESIDE))
        }

    def stored(self, name: str) -> StoredTensor:
        if name in self._packed:
            blocks, exponents = (self._values(f"{name}{end}") for end in ("_blocks", "_scales"))
            return StoredTensor(Mxfp4(), self._packed[name], {"blocks": blocks, "exponents": exponents})
        if name not in self._scales:
            if (kind := self._files.dtypes[name]) not in FLOATS.values():
                raise ModelError(f"{name} is stored as {dtype_name(kind)}, but has no {' or '.join(SCALES)} tensor")
            return self._files.stored(name)
        runs = self._runs(name, self._scales[name])
        shape = self._files.shapes[name]
        scales = _widened(self._values(self._scales[name]), shape[:-1], runs[:-1])
        return StoredTensor(Scaled(runs[-1]), shape, {"values": self._values(name), "scales": scales})

    def _values(self, name: str) -> Tensor:
        return self._files.stored(name).parts["values"]

    def _runs(self, name: str, scale: str) -> tuple[int, ...]:
        """Return, for each dimension of a matrix, how many entries share a scale."""
        shape = self._files.shapes[name]
        there = _as_many(self._files.shapes[scale], shape)
        blocks = (1,) * (len(shape) - 2) + (self._block or (1, 1))
        runs = [
            size if count == 1 else 1 if count == size else block if -(-size // block) == count else 0
            for size, count, block in zip(shape, there, blocks, strict=False)
        ]
        if len(shape) < 2 or len(there) != len(shape) or not all(runs):
            blocks_of = f" in blocks of {list(self._block)}" if self._block else ""
            raise ModelError(
                f"{name} has the shape {list(shape)}{blocks_of}, and its scales {scale} have"
                f" {list(self._files.shapes[scale])}, which does not fit"
            )
        return tuple(runs)


def _packed(files: SafetensorsFiles, quantisation: Quantisation) -> dict[str, tuple[int, ...]]:
    """Return the shapes of tensors in MXFP4. Raises ModelError if blocks and scales do not fit."""
    found = {}
    for name, shape in files.shapes.items():
        own = name.removesuffix("_blocks")
        if quantisation.method != MXFP4 or own == name:
            continue
        scales = files.shapes.get(f"{own}_scales")
        kinds = [files.dtypes.get(each) for each in (name, f"{own}_scales")]
        if len(shape) < 3 or shape[-1] != BYTES or scales != shape[:-1] or kinds != [torch.uint8] * 2:
            raise ModelError(
                f"{name} has the shape {list(shape)}, and {own}_scales has "
                f"{None if scales is None else list(scales)}: in"
                f" MXFP4 both are uint8, with {BYTES} bytes of blocks for each scale"
            )
        found[own] = (*shape[:-2], shape[-2] * BLOCK)
    return found


def _scales_of(files: SafetensorsFiles) -> dict[str, str]:
    """Map each scaled matrix to the name of its scales."""
    return {
        name.removesuffix(end): name
        for name in files.shapes
        for end in SCALES
        if name.endswith(end) and files.dtypes.get(name.removesuffix(end)) in NARROW
    }


def _as_many(scales: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of scales, extended to as many dimensions as their matrix has. A file stores one scale for the
    whole matrix, or one for each row, with fewer.
    """
    if scales in ((), (1,)):
        return (1,) * len(shape)
    return (*scales, 1) if len(scales) == len(shape) - 1 else scales


def _widened(scales: Tensor, rows: Sequence[int], runs: Sequence[int]) -> Tensor:
    """Return the scales in float32, repeated so that each row has its own: [*rows, groups of columns]."""
    found = exponential(scales) if scales.dtype is torch.uint8 else scales.float()
    found = found.view(_as_many(tuple(found.shape), (*rows, 1)))
    for dimension, (size, run) in enumerate(zip(rows, runs, strict=True)):
        if run > 1:
            found = found.repeat_interleave(run, dimension)
        found = found.narrow(dimension, 0, size)
    return found
