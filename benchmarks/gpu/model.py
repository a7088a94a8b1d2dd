"""A decoder with random weights generated on the device, and a folder of such weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models
from torch import Tensor

from peers import places
from plimsoll_runtime.models.compose.decoder import program_of
from plimsoll_runtime.models.decoder import TorchDecoder
from plimsoll_runtime.models.program import Program
from plimsoll_runtime.models.registry.registry import describe
from plimsoll_runtime.models.weight_reader import WeightReader
from plimsoll_runtime.utils.progress import silent
from plimsoll_runtime.weights.stored_tensor import StoredTensor, plain
from serving.models import Shape

LLAMA_8B = Shape("llama-8b", 128256, 4096, 14336, layers=32, heads=32, kv_heads=8, head_dim=128)
SCALE = 0.02
"""Standard deviation of the weights, which keeps numbers finite through all layers."""
FILE_BYTES = 2 * 2**30
"""Approximate size of one file."""


def config_of(shape: Shape) -> dict[str, Any]:
    """Return Llama's config.json for a shape, with long contexts."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": False,
    }


def program_for(shape: Shape) -> Program:
    """Return Llama's program for a shape."""
    return program_of(describe(config_of(shape)))


class RandomWeights:
    """Every tensor of a program, generated on the device on request."""

    def __init__(self, program: Program, dtype: torch.dtype, device: torch.device) -> None:
        self.shapes: Mapping[str, tuple[int, ...]] = program.stored_shapes()
        self._dtype = dtype
        self._device = device
        self._generator = torch.Generator(device).manual_seed(0)

    def stored(self, name: str) -> StoredTensor:
        return plain(self.drawn(name))

    def drawn(self, name: str) -> Tensor:
        """Return a tensor of random numbers; weights of norms are ones."""
        size = self.shapes[name]
        if len(size) == 1:
            return torch.ones(size, device=self._device)
        return torch.randn(size, dtype=self._dtype, device=self._device, generator=self._generator).mul_(SCALE)


def random_decoder(program: Program, dtype: torch.dtype, device: torch.device) -> TorchDecoder:
    """Return the decoder that serves GPUs, with `RandomWeights`."""
    return TorchDecoder(
        program,
        WeightReader(program, RandomWeights(program, dtype, device), dtype, device, silent),
    )


def folder(shape: Shape, device: torch.device) -> Path:
    """Return a folder in the cache with a model of this shape and random weights, created if missing. A device
    generates it in seconds.
    """
    target = places.cache() / "benchmarks" / f"{shape.name}-drawn"
    if not target.is_dir():
        made = target.with_name(f"{target.name}.new")
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
        _write(shape, made, device)
        made.rename(target)
    return target


def _write(shape: Shape, target: Path, device: torch.device) -> None:
    weights = RandomWeights(program_for(shape), torch.bfloat16, device)
    places_of: dict[str, str] = {}
    for number, names in enumerate(_files(weights.shapes)):
        file = f"model-{number:05}.safetensors"
        tensors = {name: weights.drawn(name).to("cpu", torch.bfloat16) for name in names}
        save_file(tensors, target / file, metadata={"format": "pt"})
        places_of |= dict.fromkeys(names, file)
    index = {"metadata": {}, "weight_map": places_of}
    (target / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    (target / "config.json").write_text(json.dumps(config_of(shape)), encoding="utf-8")
    words = {f"w{i}": i for i in range(shape.vocab)}
    Tokenizer(models.WordLevel(words, unk_token="w0")).save(str(target / "tokenizer.json"))


def _files(shapes: Mapping[str, tuple[int, ...]]) -> Iterator[list[str]]:
    """Yield the names of the tensors of each file, which has about FILE_BYTES."""
    names: list[str] = []
    size = 0
    for name, shape in shapes.items():
        names.append(name)
        size += 2 * torch.Size(shape).numel()
        if size >= FILE_BYTES:
            yield names
            names, size = [], 0
    if names:
        yield names
