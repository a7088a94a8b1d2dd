"""Tensors of quantised safetensors: MXFP4, and values of eight bits with scales. A matrix and its scales are one
tensor.
"""

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
"""Both numbers of each byte, that of its lower bits first: [256, 2]."""
_SCALES = torch.tensor([*(2.0 ** (exponent - 127) for exponent in range(255)), torch.nan])


@dataclass(frozen=True, slots=True)
class Mxfp4:
    """Parts "blocks" uint8 [..., rows, blocks, 16] and "exponents" uint8 [..., rows, blocks].

    MXFP4 (OCP Microscaling Formats, 2023) has numbers of four bits, of which 32 share an exponent of eight.
    """

    def converted(self, parts: Parts, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """See Scheme: piece by piece. The numbers are exact in bfloat16 and in float32."""
        blocks, exponents = parts["blocks"].flatten(0, -3), parts["exponents"].flatten(0, -2)
        return in_pieces(shape, dtype, lambda first, last: _numbers(blocks[first:last], exponents[first:last]))

    def rows(self, parts: Parts, first: int, last: int) -> Parts:
        """See Scheme."""
        return {name: part[first:last] for name, part in parts.items()}

    def columns(self, parts: Parts, first: int, last: int) -> Parts:
        """See Scheme: blocks are not cut."""
        if first % BLOCK or last % BLOCK:
            raise ValueError(f"columns {first} to {last}: MXFP4 has blocks of {BLOCK} columns")
        first, last = first // BLOCK, last // BLOCK
        return {"blocks": parts["blocks"][..., first:last, :], "exponents": parts["exponents"][..., first:last]}


def exponential(exponents: Tensor) -> Tensor:
    """Scales in float32, of exponents as the format stores them (E8M0)."""
    return _SCALES[exponents.int()]


def _numbers(blocks: Tensor, exponents: Tensor) -> Tensor:
    """[rows, columns] in float32."""
    found = _PAIRS[blocks.int()].flatten(-2)
    return found.mul_(exponential(exponents)[..., None]).flatten(1)


@dataclass(frozen=True, slots=True)
class Scaled:
    """Parts "values" [..., rows, columns] and "scales" float32 [..., rows, runs]: one for `run` columns each."""

    run: int

    def converted(self, parts: Parts, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """See Scheme: multiplied in float32, piece by piece."""
        values, scales = parts["values"].flatten(0, -2), parts["scales"].flatten(0, -2)
        return in_pieces(shape, dtype, lambda first, last: self._multiplied(values[first:last], scales[first:last]))

    def rows(self, parts: Parts, first: int, last: int) -> Parts:
        """See Scheme."""
        return {name: part[first:last] for name, part in parts.items()}

    def columns(self, parts: Parts, first: int, last: int) -> Parts:
        """See Scheme: runs are not cut, but for the last one."""
        end = parts["values"].shape[-1]
        if first % self.run or (last % self.run and last != end):
            raise ValueError(f"columns {first} to {last}: there is a scale for {self.run} columns")
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
"""What scaled matrices are stored as."""
BESIDE = ("input_scale", "input_scale_ub", "activation_scale", "output_scale", "q_scale", "k_scale", "v_scale")
"""How the names of scales end that are of no weight."""


class QuantisedTensors:
    """See TensorSource. Raises ModelError, by name, for a matrix that does not fit its scales, or has none.

    `NAME_blocks` and `NAME_scales` are NAME in MXFP4, and `NAME` with `NAME_scale` or `NAME_scale_inv` is scaled; both
    names hold factors. Scales of activations and of caches say nothing about weights and are left out.
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
        """See TensorSource."""
        if name in self._packed:
            blocks, exponents = (self._values(f"{name}{end}") for end in ("_blocks", "_scales"))
            return StoredTensor(Mxfp4(), self._packed[name], {"blocks": blocks, "exponents": exponents})
        if name not in self._scales:
            if (kind := self._files.dtypes[name]) not in FLOATS.values():
                raise ModelError(f"{name} is stored as {dtype_name(kind)}, and no {' or '.join(SCALES)} of it is there")
            return self._files.stored(name)
        runs = self._runs(name, self._scales[name])
        shape = self._files.shapes[name]
        scales = _widened(self._values(self._scales[name]), shape[:-1], runs[:-1])
        return StoredTensor(Scaled(runs[-1]), shape, {"values": self._values(name), "scales": scales})

    def _values(self, name: str) -> Tensor:
        return self._files.stored(name).parts["values"]

    def _runs(self, name: str, scale: str) -> tuple[int, ...]:
        """How many of each dimension of a matrix share a scale."""
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
                f" {list(self._files.shapes[scale])}: they do not belong together"
            )
        return tuple(runs)


def _packed(files: SafetensorsFiles, quantisation: Quantisation) -> dict[str, tuple[int, ...]]:
    """Shapes of what is in MXFP4."""
    found = {}
    for name, shape in files.shapes.items():
        own = name.removesuffix("_blocks")
        if quantisation.method != MXFP4 or own == name:
            continue
        scales = files.shapes.get(f"{own}_scales")
        kinds = [files.dtypes.get(each) for each in (name, f"{own}_scales")]
        if len(shape) < 3 or shape[-1] != BYTES or scales != shape[:-1] or kinds != [torch.uint8] * 2:
            raise ModelError(
                f"{name} has the shape {list(shape)}, and {own}_scales {None if scales is None else list(scales)}: in"
                f" MXFP4 they are bytes, {BYTES} of them for each of the scales"
            )
        found[own] = (*shape[:-2], shape[-2] * BLOCK)
    return found


def _scales_of(files: SafetensorsFiles) -> dict[str, str]:
    """The scales of each matrix that has some, by its name."""
    return {
        name.removesuffix(end): name
        for name in files.shapes
        for end in SCALES
        if name.endswith(end) and files.dtypes.get(name.removesuffix(end)) in NARROW
    }


def _as_many(scales: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of scales with as many dimensions as their matrix: one for all, or one for each row, has fewer."""
    if scales in ((), (1,)):
        return (1,) * len(shape)
    return (*scales, 1) if len(scales) == len(shape) - 1 else scales


def _widened(scales: Tensor, rows: Sequence[int], runs: Sequence[int]) -> Tensor:
    """In float32, one for each row."""
    found = exponential(scales) if scales.dtype is torch.uint8 else scales.float()
    found = found.view(_as_many(tuple(found.shape), (*rows, 1)))
    for dimension, (size, run) in enumerate(zip(rows, runs, strict=True)):
        if run > 1:
            found = found.repeat_interleave(run, dimension)
        found = found.narrow(dimension, 0, size)
    return found
