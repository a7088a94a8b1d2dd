"""Finds the library of CPU kernels, and selects the best instruction set that can run here."""

from __future__ import annotations

import ctypes
import logging
import os
from ctypes import POINTER, c_char_p, c_int32
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from plimsoll_kernels.cpu.compile import CompileError, is_whole, library_path, unsupported
from plimsoll_kernels.cpu.exchange_records import declare
from plimsoll_kernels.cpu.records import KernelsRecord
from plimsoll_kernels.cpu.speed import Speed, measure, product_seconds

logger = logging.getLogger(__name__)

VARIABLE = "PLIMSOLL_CPU_ISA"
INSTRUCTION_SETS = ("avx2", "avx512", "avx512_bf16", "amx")
"""From the least to the best."""
DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
TRIAL_ROWS = 64
WORTH = 0.85
"""A lesser instruction set is selected if it needs less than this share of a better one's time."""


class InstructionsError(ValueError):
    """PLIMSOLL_CPU_ISA, or a packed weight, needs an instruction set that is not available; the message lists those
    that are.
    """


@dataclass(slots=True)
class _Chosen:
    """The instruction set that this process must use (`choose`)."""

    name: str | None = None


_chosen = _Chosen()


def kernels(dtype: torch.dtype, name: str | None = None) -> KernelsRecord | None:
    """Return the kernels for a dtype: of the instruction set `name`; if None, of PLIMSOLL_CPU_ISA; if that is not set,
    of the one that was given to `choose`; otherwise the best.

    None if these cannot run here. Raises InstructionsError if PLIMSOLL_CPU_ISA cannot be used.
    """
    wanted = name or instructions() or _chosen.name
    return _best(dtype) if wanted is None else _find(dtype, wanted)


def required(dtype: torch.dtype) -> KernelsRecord:
    """Return the kernels for a dtype; raises ValueError if none can run here."""
    found = kernels(dtype)
    if found is None:
        raise ValueError(f"no CPU kernels for {dtype} can run here")
    return found


def instructions() -> str | None:
    """Return the value of PLIMSOLL_CPU_ISA, None if unset. Raises InstructionsError if it cannot be used."""
    wanted = os.environ.get(VARIABLE)
    if not wanted:
        return None
    if wanted not in INSTRUCTION_SETS:
        raise InstructionsError(f"{VARIABLE}={wanted} is unknown; choose {', '.join(INSTRUCTION_SETS)}, or unset it")
    if library() is None:
        raise InstructionsError(f"{VARIABLE}={wanted} needs the CPU kernels, which are not available here; unset it")
    if _find(torch.bfloat16, wanted) is None:
        able = ", ".join(runnable()) or "none of them"
        refused = _refusal() if wanted == "amx" else None
        why = f"on this processor, which has {able}" if refused is None else f"here: {refused}"
        raise InstructionsError(f"{VARIABLE}={wanted} cannot run {why}; unset it")
    return wanted


def choose(dtype: torch.dtype, name: str) -> None:
    """Make this process use one instruction set, without a trial, because its weights are packed for it.

    Raises InstructionsError if its kernels for that dtype cannot run here, or PLIMSOLL_CPU_ISA selects others.
    """
    wanted = instructions()
    found = _find(dtype, wanted or name)
    if found is None or found.name.decode() != name:
        able = ", ".join(runnable()) or "none"
        asked = f"{VARIABLE}={wanted} selects the kernels of {wanted}; unset it"
        here = asked if wanted else f"this processor and system run {able}"
        raise InstructionsError(f"weights in {DTYPES.get(dtype, dtype)} are packed for {name}, but {here}")
    _chosen.name = name


@lru_cache(maxsize=1)
def runnable() -> tuple[str, ...]:
    """Return the instruction sets whose kernels were built and can run here, from the least to the best."""
    return tuple(name for name in INSTRUCTION_SETS if _find(torch.bfloat16, name) is not None)


@lru_cache
def _best(dtype: torch.dtype) -> KernelsRecord | None:
    """Return the best kernels, for bfloat16 the fastest in a short trial, because having instructions does not mean
    that they are fast.

    (Some processors with AMX multiply pairs of bfloat16 in vectors more slowly than they convert them.)
    """
    if dtype is not torch.bfloat16:
        return _find(dtype, None)
    if why := _refusal():
        logger.warning("%s; the CPU kernels use vector instructions, which are several times slower for many rows", why)
    able = [found for name in reversed(runnable()) if (found := _find(dtype, name))]
    if len(able) < 2:
        return able[0] if able else None
    best, least = None, float("inf")
    for found, seconds in zip(able, product_seconds(able, TRIAL_ROWS), strict=True):
        if best is None or seconds < WORTH * least:
            best, least = found, seconds
    return best


def speed(dtype: torch.dtype) -> Speed | None:
    """Return the speed of the kernels for a dtype, relative to the processor's peak; None without kernels."""
    used = kernels(dtype)
    return None if used is None else measure(used, [found for name in runnable() if (found := _find(dtype, name))])


@lru_cache(maxsize=1)
def _refusal() -> str | None:
    """Return why AMX is not usable on this processor; None if it is, or if the processor has none."""
    found = library()
    error = 0 if found is None else found.plimsoll_amx()
    return f"the system grants this process no AMX tiles: {os.strerror(error)}" if error > 0 else None


@lru_cache
def _find(dtype: torch.dtype, name: str | None) -> KernelsRecord | None:
    opened = library()
    if opened is None or dtype not in DTYPES:
        return None
    found = opened.plimsoll_kernels(DTYPES[dtype].encode(), None if name is None else name.encode())
    return found.contents if found else None


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """Return the library if it was built, is complete and supports this processor; otherwise log why not, once."""
    try:
        return _open(library_path())
    except (CompileError, OSError) as error:
        logger.warning("stock torch computes instead of the CPU kernels (slower, same results): %s", error)
        return None


def _open(path: Path) -> ctypes.CDLL:
    """Load the library. Raises CompileError or OSError with the problem and its remedy."""
    if reason := unsupported():
        raise CompileError(reason)
    if not is_whole(path):
        state = f"{path} is damaged" if path.exists() else "the kernels of this version were not built"
        raise CompileError(f"{state}; install a C++ compiler, then python -m plimsoll_kernels.cpu.compile")
    opened = ctypes.CDLL(str(path))
    opened.plimsoll_kernels.argtypes = [c_char_p, c_char_p]
    opened.plimsoll_kernels.restype = POINTER(KernelsRecord)
    opened.plimsoll_amx.restype = c_int32
    opened.plimsoll_leave.argtypes = [c_int32]
    opened.plimsoll_leave.restype = None
    if not opened.plimsoll_kernels(b"float32", None):
        raise CompileError("the kernels need AVX2 with FMA, which this processor lacks")
    declare(opened)
    return opened
