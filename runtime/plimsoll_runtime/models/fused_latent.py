"""What the CPU kernels walk of latent attention, with the places of the values that each op reads and writes."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll_runtime.models.op_times import OpKind
from plimsoll_runtime.models.ops.latent import Absorb, AttendLatent, Expand, Latent

STEP = 32
"""Values of a row that a product's widest step takes: heads whose rows products read are a multiple of it apart."""


def apart(width: int) -> int:
    """How far the rows of two heads are from each other, of so many values each."""
    return -(-width // STEP) * STEP


@dataclass(frozen=True, slots=True)
class FusedLatent:
    """Floats to the vectors that a layer's cache keeps."""

    op: Latent
    layer: int
    source: int

    @property
    def timed(self) -> OpKind:
        """As what it is timed."""
        return self.op.kind


@dataclass(frozen=True, slots=True)
class FusedAbsorb:
    """Floats to queries as operands; what products read of them lies at `between`."""

    op: Absorb
    source: int
    between: int
    target: int

    @property
    def timed(self) -> OpKind:
        """As what it is timed."""
        return self.op.kind


@dataclass(frozen=True, slots=True)
class FusedAttendLatent:
    """Queries to what they attend to, operands both, whose heads are `apart`."""

    op: AttendLatent
    source: int
    target: int

    @property
    def timed(self) -> OpKind:
        """As what it is timed."""
        return self.op.kind


@dataclass(frozen=True, slots=True)
class FusedExpand:
    """What was attended to, to values, operands both."""

    op: Expand
    source: int
    target: int

    @property
    def timed(self) -> OpKind:
        """As what it is timed."""
        return self.op.kind


FusedLatentOp = FusedLatent | FusedAbsorb | FusedAttendLatent | FusedExpand
