"""The ops of latent attention as the kernels read them (source/latent_ops.h)."""

from __future__ import annotations

from ctypes import Structure, c_float, c_int32, c_void_p
from typing import ClassVar

from plimsoll_kernels.cpu.op_kinds import Kind


class LatentRecord(Structure):
    """PlimsollLatent."""

    kind: ClassVar = Kind.LATENT
    _fields_ = (
        ("weight", c_void_p),
        *((name, c_int32) for name in ("layer", "source", "rank", "turned", "norm", "rope", "pairs")),
        ("eps", c_float),
    )


class AbsorbRecord(Structure):
    """PlimsollAbsorb."""

    kind: ClassVar = Kind.ABSORB
    _fields_ = (
        ("weight", c_void_p),
        *((name, c_int32) for name in ("source", "between", "target", "heads", "plain", "rank", "turned", "apart")),
        *((name, c_int32) for name in ("rope", "pairs", "growth_offset")),
        *((name, c_float) for name in ("growth", "growth_every")),
    )


class ExpandRecord(Structure):
    """PlimsollExpand."""

    kind: ClassVar = Kind.EXPAND
    _fields_ = (
        ("weight", c_void_p),
        *((name, c_int32) for name in ("source", "target", "heads", "rank", "value", "apart")),
    )
