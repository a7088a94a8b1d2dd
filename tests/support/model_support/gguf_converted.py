"""A model's tensors as llama.cpp's converter hands them on: what it joins, splits, transposes and renames."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

EXPERT = re.compile(r"(.+\.experts)\.(\d+)\.(.+)")
SPLIT = {"block_sparse_moe.input_linear": "exps", "shared_mlp.input_linear": "shexp"}
"""Granite's tensors that have gates above what they open, and what llama.cpp calls both."""
TRANSPOSED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
INTERLEAVED = dict.fromkeys(("gpt_neox", "bloom", "falcon"), "attention.query_key_value")
"""Models whose queries, keys and values lie head by head, or in Falcon group by group."""


def is_converted(config: Any) -> bool:
    """Whether its tensors change on the way."""
    counts = ("num_local_experts", "num_experts", "n_routed_experts")
    mixture = any(getattr(config, name, None) for name in (*counts, "moe_num_experts"))
    return mixture or config.model_type in ("gpt2", "gpt_bigcode", *INTERLEAVED)


def converted(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Names that the gguf package has names for, or llama.cpp's own."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        saved = load_file(Path(folder) / "model.safetensors")
    experts: dict[str, dict[int, Tensor]] = {}
    for name, tensor in saved.items():
        if match := EXPERT.fullmatch(name):
            experts.setdefault(f"{match[1]}.{match[3]}", {})[int(match[2])] = tensor
        else:
            yield from _changed(name, tensor, model.config)
    for name, stack in experts.items():
        yield name, torch.stack([stack[number] for number in range(len(stack))])


def _changed(name: str, tensor: Tensor, config: Any) -> Iterator[tuple[str, Tensor]]:
    for part, kind in SPLIT.items():
        if name.endswith(f"{part}.weight"):
            block = re.search(r"layers\.(\d+)\.", name)
            assert block is not None
            for which, half in zip(("gate", "up"), tensor.chunk(2, dim=-2), strict=True):
                yield f"blk.{block[1]}.ffn_{which}_{kind}.weight", half
            return
    if config.model_type == "gpt2" and name.endswith(TRANSPOSED):
        tensor = tensor.t()
    elif (part := INTERLEAVED.get(config.model_type, "-")) in name:
        tensor = _part_by_part(tensor, config)
    yield name.replace("e_score_correction_bias", "e_score_correction.bias"), tensor.squeeze()


def _part_by_part(tensor: Tensor, config: Any) -> Tensor:
    """All queries, all keys, all values."""
    heads = groups = config.num_attention_heads
    if config.model_type == "falcon":
        groups = config.num_kv_heads if config.new_decoder_architecture else 1
    each = tensor.view(groups, heads // groups + 2, -1, *tensor.shape[1:])
    return torch.cat(
        [part.reshape(-1, *tensor.shape[1:]) for part in torch.split(each, [heads // groups, 1, 1], dim=1)]
    )
