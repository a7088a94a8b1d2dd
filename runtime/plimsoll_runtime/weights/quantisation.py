"""Reads the quantisation from a config, and rejects unsupported methods with the reason."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from plimsoll_runtime.errors import ModelError

MXFP4 = "mxfp4"
FP8_BLOCK = (128, 128)
MXFP8_BLOCK = (1, 32)
MOST = 2**20
"""Most rows or columns of a quantisation block."""
REASONS: Mapping[str, str] = {
    "awq": "four bits with a zero point for each group, in columns whose order is AWQ's own",
    "gptq": "integers of two to eight bits with zero points, in a column order that differs between files",
    "bitsandbytes": "codes of lookup tables, with quantised scales, for its own CUDA kernels",
    "aqlm": "codes of codebooks that are added up",
    "vptq": "codes of codebooks of vectors",
    "quark": "a different format for each layer, which only Quark's library reads",
    "nvfp4": "four bits with scales of scales",
    "bitnet": "ternary weights, four in a byte, for products with quantised activations",
    "torchao": "tensor subclasses that only Python's pickle can load",
}
"""Unsupported methods, with a description of what they store."""


@dataclass(frozen=True, slots=True)
class Quantisation:
    """`method` is the config's quant_method. `block`: rows and columns that share a scale, if the config gives them."""

    method: str
    block: tuple[int, int] | None = None


def quantisation_of(config: Mapping[str, Any]) -> Quantisation | None:
    """Return the quantisation of a config.json or of its text_config; None if the weights are not quantised.

    Raises ModelError naming an unsupported method and the reason.
    """
    text = config.get("text_config")
    said = _said(config) or (_said(text) if isinstance(text, Mapping) else None)
    if not said:
        return None
    if not isinstance(said, Mapping):
        raise ModelError(f"config.json: quantization_config is {str(said)[:40]!r}; it must be an object")
    method = str(said.get("quant_method", "unknown"))
    if method not in _READERS:
        raise _refused(method, REASONS.get(method, "an unknown format"))
    return _READERS[method](method, said)


def _said(config: Mapping[str, Any]) -> Any:
    return config.get("quantization_config") or config.get("compression_config")


def _refused(method: str, reason: str) -> ModelError:
    return ModelError(
        f"config.json: quantization_config: {method[:80]} is not supported: it stores {reason}. Use the model "
        "unquantised, in FP8 or MXFP4, or as a GGUF file"
    )


def _plain(method: str, said: Mapping[str, Any]) -> Quantisation:
    return Quantisation(method)


def _fp8(method: str, said: Mapping[str, Any]) -> Quantisation:
    """Read DeepSeek's FP8: blocks of weight_block_size, or one scale for each matrix."""
    if (kind := said.get("fmt") or "e4m3") not in ("e4m3", "float8_e4m3fn"):
        raise _refused(method, f"numbers in the format {str(kind)[:20]} (only e4m3 is supported)")
    return Quantisation(method, _block(said.get("weight_block_size"), "weight_block_size"))


def _mxfp8(method: str, said: Mapping[str, Any]) -> Quantisation:
    return Quantisation(method, _block(said.get("weight_block_size"), "weight_block_size") or MXFP8_BLOCK)


def _compressed(method: str, said: Mapping[str, Any]) -> Quantisation:
    """Read compressed-tensors: eight bits a weight without zero points, with any grouping of scales."""
    groups = said.get("config_groups")
    if not isinstance(groups, Mapping) or not all(isinstance(group, Mapping) for group in groups.values()):
        raise ModelError("config.json: quantization_config has no config_groups")
    if (sparse := _form_of(said.get("sparsity_config"))) not in ("None", "dense"):
        raise _refused(method, f"sparse matrices ({sparse})")
    found = None
    for group in groups.values():
        weights = group.get("weights")
        if not isinstance(weights, Mapping):
            continue
        form = str(group.get("format") or said.get("format") or "unknown")[:40]
        bits, symmetric = weights.get("num_bits"), weights.get("symmetric", True)
        if bits != 8 or not symmetric or form.startswith("pack"):
            kind = f"{form}, {bits} bits{'' if symmetric else ' with zero points'}"
            raise _refused(method, f"weights as {kind} (only eight bits without zero points are supported)")
        found = _block(weights.get("block_structure"), "block_structure") or found
        if (size := weights.get("group_size")) is not None and weights.get("strategy") == "group":
            found = _block([1, size], "group_size")
    return Quantisation(method, found)


def _form_of(said: Any) -> str:
    return str(said.get("format") if isinstance(said, Mapping) else said)[:40]


def _modelopt(method: str, said: Mapping[str, Any]) -> Quantisation:
    """Read NVIDIA's ModelOpt: FP8 with a scale for each matrix, row or block."""
    algorithm = str(said.get("quant_algo") or "FP8")  # none if only caches are quantised
    if algorithm.upper() not in ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO"):
        raise _refused(method, f"weights as {algorithm[:40]} (only FP8 is supported)")
    return Quantisation(method, FP8_BLOCK)


def _block(value: Any, field: str) -> tuple[int, int] | None:
    if isinstance(value, str):  # "128x128"
        value = [int(part) if re.fullmatch("[0-9]{1,9}", part) else part for part in value.split("x")]
    match value:
        case None:
            return None
        case [int(rows), int(columns)] if 0 < rows <= MOST and 0 < columns <= MOST:
            return rows, columns
    raise ModelError(
        f"config.json: quantization_config: {field} is {str(value)[:40]}; it must be two integers from 1 to {MOST}, "
        "rows and columns"
    )


_READERS: Mapping[str, Callable[[str, Mapping[str, Any]], Quantisation]] = {
    MXFP4: _plain,
    "fp8": _fp8,
    "mxfp8": _mxfp8,
    "fbgemm_fp8": _plain,
    "compressed-tensors": _compressed,
    "modelopt": _modelopt,
}
