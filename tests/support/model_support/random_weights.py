"""The tensors of a program out of thin air, as large as a trained model's, so that every part of it can be seen."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from plimsoll_runtime.models.program import Program
from plimsoll_runtime.models.weight_reader import WeightReader
from plimsoll_runtime.weights.stored_tensor import StoredTensor, plain

NOISE = 0.3


class RandomWeights:
    """See TensorSource: numbers that bfloat16 has, so that every dtype loads the same."""

    def __init__(self, program: Program, seed: int = 0) -> None:
        self.shapes: Mapping[str, tuple[int, ...]] = program.stored_shapes()
        generator = torch.Generator().manual_seed(seed)
        self._tensors = {name: self._random(name, shape, generator) for name, shape in self.shapes.items()}

    def stored(self, name: str) -> StoredTensor:
        """See TensorSource."""
        return plain(self._tensors[name])

    def put(self, name: str, tensor: torch.Tensor) -> None:
        """Another tensor in the place of one of them."""
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
    """Reads them, each time the same ones."""
    return reading(program, RandomWeights(program), dtype)


def reading(program: Program, weights: RandomWeights, dtype: torch.dtype) -> WeightReader:
    """Reads these."""
    return WeightReader(program, weights, dtype, torch.device("cpu"), lambda stage, fraction: None)
