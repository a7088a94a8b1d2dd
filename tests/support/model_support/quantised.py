"""Saves models in formats of quantised checkpoints, with Transformers' dequantised copy."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from model_support.tiny import edit_config
from safetensors.torch import load_file, save_file
from torch import Tensor

LARGEST = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}
MATRICES = re.compile(r"(?<!norm)(?<!embed_tokens)(?<!lm_head)(?<!gate)\.weight$")
"""Names of quantised matrices: not embedding, head and router."""


@dataclass(frozen=True)
class Form:
    """A format. `block`: rows and columns that share a scale, 0 for all. `scale`: suffix of the scales' names.

    `shape`: the scales' shape, from their [rows, columns]. `more`: further tensors by the last part of their names.
    """

    said: Mapping[str, Any]
    block: tuple[int, int] = (0, 0)
    scale: str = "_scale"
    dtype: torch.dtype = torch.float8_e4m3fn
    scales: torch.dtype = torch.float32
    shape: Callable[[Tensor], Tensor] = lambda scales: scales
    more: tuple[str, ...] = ()


def compressed(form: str, strategy: str, **more: Any) -> dict[str, Any]:
    kind = "int" if form.startswith("int") else "float"
    weights = {"num_bits": 8, "type": kind, "strategy": strategy, "symmetric": True, **more}
    groups = {"group_0": {"weights": weights, "input_activations": None, "targets": ["Linear"]}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups, "ignore": ["lm_head"]}


FORMS: Mapping[str, Form] = {
    "fp8-blocks": Form({"quant_method": "fp8", "weight_block_size": [16, 16]}, (16, 16), "_scale_inv"),
    "fp8-matrices": Form(
        {"quant_method": "fp8", "activation_scheme": "static"}, shape=lambda s: s[0, 0], more=("input_scale",)
    ),
    "fbgemm": Form({"quant_method": "fbgemm_fp8"}, (1, 0)),
    "compressed-channels": Form(compressed("float-quantized", "channel"), (1, 0), scales=torch.bfloat16),
    "compressed-matrices": Form(compressed("float-quantized", "tensor"), shape=lambda s: s[0], more=("input_scale",)),
    "compressed-blocks": Form(compressed("float-quantized", "block", block_structure=[16, 8]), (16, 8)),
    "compressed-groups": Form(compressed("float-quantized", "group", group_size=8), (1, 8)),
    "compressed-int8": Form(compressed("int-quantized", "channel"), (1, 0), dtype=torch.int8),
    "modelopt": Form({"quant_method": "modelopt", "quant_algo": "FP8"}, shape=lambda s: s[0, 0], more=("input_scale",)),
    "mxfp8": Form({"quant_method": "mxfp8"}, (1, 32), "_scale_inv", scales=torch.uint8),
}


def quantise(folder: Path, form: Form, plain: Path) -> None:
    """Rewrite a saved model in a format, and in another folder as Transformers dequantises it."""
    tensors, stored, meant = load_file(folder / "model.safetensors"), {}, {}
    for name, tensor in tensors.items():
        if tensor.dim() != 2 or not MATRICES.search(name):
            stored[name] = meant[name] = tensor
            continue
        scales = _scales(tensor, form)
        wide = _wide(scales, tensor.shape)
        whole = form.dtype is torch.int8
        stored[name] = ((tensor / wide).round() if whole else tensor / wide).to(form.dtype)
        stored[name + form.scale] = form.shape(_as_stored(scales, form.scales)).contiguous()
        stored |= {name.removesuffix("weight") + each: torch.tensor(0.5) for each in form.more}
        meant[name] = (
            stored[name].float() * wide if whole else by_transformers(stored[name], _as_stored(scales, form.scales))
        )
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    _save_beside(folder, plain, meant)
    edit_config(folder, quantization_config=dict(form.said))


def by_transformers(values: Tensor, scales: Tensor) -> Tensor:
    """Dequantise a matrix [rows, columns] with scales [rows, columns] by Transformers."""
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    make: Any = Fp8Dequantize
    found: Tensor = make(None)._dequantize_one(values, scales, torch.float32)
    return found


def pack_experts(folder: Path, plain: Path, *, seed: int = 0) -> None:
    """Rewrite a saved gpt-oss with random experts in MXFP4, and in another folder as Transformers unpacks them."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    unpack: Any = convert_moe_packed_tensors
    stored, meant = load_file(folder / "model.safetensors"), {}
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in list(stored.items()):
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            meant[name] = tensor
            continue
        experts, inputs, outputs = tensor.shape
        blocks = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), generator=generator, dtype=torch.uint8)
        scales = torch.randint(119, 124, (experts, outputs, inputs // 32), generator=generator, dtype=torch.uint8)
        del stored[name]
        stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        meant[name] = unpack(blocks, scales, dtype=torch.float32).contiguous()
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    _save_beside(folder, plain, meant)
    edit_config(folder, quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})


def _save_beside(folder: Path, plain: Path, tensors: dict[str, Tensor]) -> None:
    plain.mkdir()
    save_file(tensors, plain / "model.safetensors", {"format": "pt"})
    for file in folder.glob("*.json"):
        (plain / file.name).write_text(file.read_text())
    assert "quantization_config" not in json.loads((plain / "config.json").read_text())


def _scales(tensor: Tensor, form: Form) -> Tensor:
    """Return scales [rows, columns]: the largest number that shares each, divided by the largest storable one."""
    rows, columns = (block or size for block, size in zip(form.block, tensor.shape, strict=True))
    tiles = tensor.unfold(0, rows, rows).unfold(1, columns, columns)
    scales = tiles.abs().amax(dim=(2, 3)) / LARGEST[form.dtype]
    return torch.exp2(scales.log2().ceil()) if form.scales is torch.uint8 else scales.to(form.scales).float()


def _as_stored(scales: Tensor, dtype: torch.dtype) -> Tensor:
    return (scales.log2() + 127).to(dtype) if dtype is torch.uint8 else scales.to(dtype)


def _wide(scales: Tensor, shape: torch.Size) -> Tensor:
    rows, columns = (size // count for size, count in zip(shape, scales.shape, strict=True))
    return scales.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
