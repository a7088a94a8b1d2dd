"""Random tensors of a program, with a trained model's magnitude, so that every part affects the result."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from plimsoll_runtime.models.program import Program
from plimsoll_runtime.models.weight_reader import WeightReader
from plimsoll_runtime.weights.stored_tensor import StoredTensor, plain

NOISE = 0.3


class RandomWeights:
    """A TensorSource of numbers that bfloat16 stores exactly, so that every dtype loads the same."""

    def __init__(self, program: Program, seed: int = 0) -> None:
        self.shapes: Mapping[str, tuple[int, ...]] = program.stored_shapes()
        generator = torch.Generator().manual_seed(seed)
        self._tensors = {name: self._random(name, shape, generator) for name, shape in self.shapes.items()}

    def stored(self, name: str) -> StoredTensor:
        return plain(self._tensors[name])

    def put(self, name: str, tensor: torch.Tensor) -> None:
        """Replace a tensor."""
        assert tensor.shape == self._tensors[name].shape
        self._tensors[name] = tensor

    @staticmethod
    def _random(name: str, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
        noise = torch.randn(shape, generator=generator)
        if len(shape) > 1:
            noise = noise * (0.5 if "embed" in name else 1.5 * shape[-1] ** -0.5)
        elif name.endswith("bias"):
            noise = noise * NOISE
        else:
            noise = 1.0 + noise * NOISE
        return noise.to(torch.bfloat16).float()


def reader_of(program: Program, dtype: torch.dtype) -> WeightReader:
    """Return a reader of random tensors, the same each time."""
    return reading(program, RandomWeights(program), dtype)


def reading(program: Program, weights: RandomWeights, dtype: torch.dtype) -> WeightReader:
    """Return a reader of these weights."""
    return WeightReader(program, weights, dtype, torch.device("cpu"), lambda stage, fraction: None)
