"""A decoder of random weights that lie on no disk."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from plimsoll_runtime.models.composing import program_of
from plimsoll_runtime.models.decoder import TorchDecoder
from plimsoll_runtime.models.program import Program
from plimsoll_runtime.models.registry import describe
from plimsoll_runtime.models.weights import WeightReader
from plimsoll_runtime.weights.stored import StoredTensor, plain
from serving.models import Shape

LLAMA_8B = Shape("llama-8b", 128256, 4096, 14336, layers=32, heads=32, kv_heads=8, head_dim=128)
SCALE = 0.02
"""Deviation of the weights: numbers stay finite through all layers."""


def program_for(shape: Shape) -> Program:
    """Llama's program for a shape, long contexts allowed."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": False,
    }
    return program_of(describe(config))


class RandomWeights:
    """Every tensor that a program needs, drawn when it is asked for, on the device itself."""

    def __init__(self, program: Program, dtype: torch.dtype, device: torch.device) -> None:
        self.shapes: Mapping[str, tuple[int, ...]] = program.stored_shapes()
        self._dtype = dtype
        self._device = device
        self._generator = torch.Generator(device).manual_seed(0)

    def stored(self, name: str) -> StoredTensor:
        """See TensorSource; norms are ones."""
        size = self.shapes[name]
        if len(size) == 1:
            return plain(torch.ones(size, device=self._device))
        values = torch.randn(size, dtype=self._dtype, device=self._device, generator=self._generator)
        return plain(values.mul_(SCALE))


def random_decoder(program: Program, dtype: torch.dtype, device: torch.device) -> TorchDecoder:
    """The decoder that serves GPUs, over such weights."""
    return TorchDecoder(
        program,
        WeightReader(program, RandomWeights(program, dtype, device), dtype, device, lambda stage, fraction: None),
    )
