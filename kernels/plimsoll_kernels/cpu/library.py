"""The library as Python sees it: its records and functions (source/interface.h), and which kernels may run here."""

from __future__ import annotations

import ctypes
import logging
import os
from ctypes import POINTER, Structure, c_char_p, c_double, c_float, c_int32, c_int64, c_void_p
from functools import lru_cache
from pathlib import Path

import torch

from plimsoll_kernels.cpu.compile import CompileError, is_whole, library_path, unsupported

logger = logging.getLogger(__name__)

VARIABLE = "PLIMSOLL_CPU_ISA"
INSTRUCTION_SETS = ("avx2", "avx512", "avx512_bf16")
DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
OPS = ("embed", "norm", "qkv", "rope", "attention", "output", "gate_up", "down")


class InstructionsError(ValueError):
    """PLIMSOLL_CPU_ISA asks for what cannot be had; the message says what can."""


class LinearRecord(Structure):
    """PlimsollLinear."""

    _fields_ = (("weight", c_void_p), ("bias", c_void_p), ("inputs", c_int32), ("columns", c_int32))


class LayerRecord(Structure):
    """PlimsollLayer."""

    _fields_ = (
        *((name, LinearRecord) for name in ("query_key_value", "output", "gate_up", "down")),
        *((name, c_void_p) for name in ("attention_norm", "mlp_norm", "attention_post_norm", "mlp_post_norm")),
        *((name, c_void_p) for name in ("query_norm", "key_norm")),
        *((name, c_int32) for name in ("rope", "heads", "kv_heads", "head_dim", "window")),
        ("scale", c_float),
        ("softcap", c_float),
    )


class ModelRecord(Structure):
    """PlimsollModel."""

    _fields_ = (
        ("layers", POINTER(LayerRecord)),
        *((name, c_int32) for name in ("num_layers", "vocab", "hidden", "inner")),
        ("embedding", c_void_p),
        ("packed_embedding", c_void_p),
        ("final_norm", c_void_p),
        ("norm_eps", c_float),
        ("embedding_scale", c_float),
        ("activation", c_int32),
        ("max_heads_width", c_int32),
    )


class CacheRecord(Structure):
    """PlimsollCache."""

    _fields_ = (
        ("keys", POINTER(c_void_p)),
        ("values", POINTER(c_void_p)),
        ("head_strides", POINTER(c_int64)),
        ("block_strides", POINTER(c_int64)),
        ("block_size", c_int32),
    )


class StepRecord(Structure):
    """PlimsollStep."""

    _fields_ = (
        ("rows", c_int32),
        ("sequences", c_int32),
        ("tokens", c_void_p),
        ("slots", c_void_p),
        ("positions", c_void_p),
        ("turns", POINTER(c_void_p)),
        *((name, c_void_p) for name in ("first_rows", "contexts", "blocks", "first_blocks")),
        *((name, c_void_p) for name in ("hidden", "workspace")),
        ("seconds", POINTER(c_double)),
    )


class SamplingRecord(Structure):
    """PlimsollSampling."""

    _fields_ = (
        ("rows", c_int32),
        ("width", c_int32),
        ("stride", c_int64),
        *((name, c_void_p) for name in ("logits", "temperature", "top_k", "top_p", "min_p", "uniform")),
        *((name, c_void_p) for name in ("best", "tokens", "workspace")),
    )


class ReportsRecord(Structure):
    """PlimsollReports."""

    _fields_ = (
        ("rows", c_int32),
        ("width", c_int32),
        ("stride", c_int64),
        *((name, c_void_p) for name in ("logits", "tokens", "alternatives")),
        ("most", c_int32),
        *((name, c_void_p) for name in ("chosen", "ranks", "top_tokens", "top", "workspace")),
    )


_ATTENTION = (
    *(c_void_p, c_void_p, c_void_p, c_void_p, POINTER(LayerRecord), c_int32),
    *(POINTER(CacheRecord), POINTER(StepRecord), c_int32),
)


class KernelsRecord(Structure):
    """PlimsollKernels: the functions of one instruction set."""

    _fields_ = (
        ("name", c_char_p),
        ("lanes", c_int32),
        ("packed_elements", ctypes.CFUNCTYPE(c_int64, c_int32, c_int32, c_int32)),
        ("pack", ctypes.CFUNCTYPE(None, c_void_p, c_int32, c_int32, c_void_p, c_int32)),
        ("pack_gated", ctypes.CFUNCTYPE(None, c_void_p, c_void_p, c_int32, c_int32, c_void_p, c_int32)),
        ("linear", ctypes.CFUNCTYPE(None, c_void_p, c_int32, POINTER(LinearRecord), c_void_p, c_int32)),
        ("workspace", ctypes.CFUNCTYPE(c_int64, POINTER(ModelRecord), c_int32, c_int32)),
        (
            "forward",
            ctypes.CFUNCTYPE(None, POINTER(ModelRecord), POINTER(CacheRecord), POINTER(StepRecord), c_int32),
        ),
        ("attention_workspace", ctypes.CFUNCTYPE(c_int64, c_int32, c_int32)),
        ("attention", ctypes.CFUNCTYPE(None, *_ATTENTION)),
        ("sampling_workspace", ctypes.CFUNCTYPE(c_int64, c_int32, c_int32)),
        ("sample", ctypes.CFUNCTYPE(None, POINTER(SamplingRecord), c_int32)),
        ("report", ctypes.CFUNCTYPE(None, POINTER(ReportsRecord), c_int32)),
    )


def kernels(dtype: torch.dtype, name: str | None = None) -> KernelsRecord | None:
    """The kernels for a dtype: of the instruction set `name`, of the one that PLIMSOLL_CPU_ISA names, or of the best.

    None where none can run here. Raises InstructionsError for a PLIMSOLL_CPU_ISA that cannot be honoured.
    """
    return _find(dtype, instructions() if name is None else name)


def instructions() -> str | None:
    """What PLIMSOLL_CPU_ISA asks for, None without it. Raises InstructionsError where it cannot be honoured."""
    wanted = os.environ.get(VARIABLE)
    if not wanted:
        return None
    if wanted not in INSTRUCTION_SETS:
        raise InstructionsError(f"{VARIABLE}={wanted} is unknown; choose {', '.join(INSTRUCTION_SETS)}, or unset it")
    if _library() is None:
        raise InstructionsError(f"{VARIABLE}={wanted} asks for CPU kernels, and there are none here; unset it")
    if wanted not in runnable():
        able = ", ".join(runnable()) or "none of them"
        raise InstructionsError(f"{VARIABLE}={wanted} cannot run on this processor, which has {able}; unset it")
    return wanted


@lru_cache(maxsize=1)
def runnable() -> tuple[str, ...]:
    """The instruction sets whose kernels were built and can run here, the least first."""
    return tuple(name for name in INSTRUCTION_SETS if _find(torch.float32, name) is not None)


@lru_cache
def _find(dtype: torch.dtype, name: str | None) -> KernelsRecord | None:
    library = _library()
    if library is None or dtype not in DTYPES:
        return None
    found = library.plimsoll_kernels(DTYPES[dtype].encode(), None if name is None else name.encode())
    return found.contents if found else None


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL | None:
    """The library, where it was built, is whole and has kernels for this processor; otherwise says why not, once."""
    try:
        library = _open(library_path())
    except (CompileError, OSError) as error:
        logger.warning("stock torch computes instead of our CPU kernels (slower, same results): %s", error)
        return None
    return library


def _open(path: Path) -> ctypes.CDLL:
    """Raises CompileError or OSError with what is wrong and what to do."""
    if reason := unsupported():
        raise CompileError(reason)
    if not is_whole(path):
        state = f"{path} is damaged" if path.exists() else "those of this version were not built"
        raise CompileError(f"{state}; install a C++ compiler, then python -m plimsoll_kernels.cpu.compile")
    library = ctypes.CDLL(str(path))
    library.plimsoll_kernels.argtypes = [c_char_p, c_char_p]
    library.plimsoll_kernels.restype = POINTER(KernelsRecord)
    if not library.plimsoll_kernels(b"float32", None):
        raise CompileError("this processor has no AVX2 with FMA, the least that they need")
    return library
