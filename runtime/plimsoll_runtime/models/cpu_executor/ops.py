"""The ops that the CPU kernels execute, with the buffers that each reads and writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from plimsoll_kernels.cpu.op_records import Into
from plimsoll_runtime.models.ops.add import Add
from plimsoll_runtime.models.ops.attention import Attend
from plimsoll_runtime.models.ops.causal_conv import Convolve
from plimsoll_runtime.models.ops.cost import OpKind
from plimsoll_runtime.models.ops.delta_rule import DeltaRule
from plimsoll_runtime.models.ops.embed import AddPositions, Embed
from plimsoll_runtime.models.ops.experts import Experts, Gate
from plimsoll_runtime.models.ops.gated_recurrence import GatedRecurrence
from plimsoll_runtime.models.ops.heads import NormHeads, Rotate
from plimsoll_runtime.models.ops.mamba2_scan import DualScan
from plimsoll_runtime.models.ops.mamba_scan import SelectiveScan
from plimsoll_runtime.models.ops.matmul import GatedProduct, Product
from plimsoll_runtime.models.ops.mla import Absorb, AttendLatent, Expand, Latent
from plimsoll_runtime.models.ops.multiply import Multiply
from plimsoll_runtime.models.ops.norm import GatedNorm
from plimsoll_runtime.models.ops.router import Route
from plimsoll_runtime.models.ops.scale import Scale
from plimsoll_runtime.models.ops.weight import Weight
from plimsoll_runtime.models.spec.attention import Growth
from plimsoll_runtime.models.spec.norm import Norm

ByColumn = Scale | Multiply | Convolve | GatedNorm
"""What they write of a row depends on no other column, or only where it was read: they may write where they read."""
Scan = DualScan | DeltaRule | SelectiveScan | GatedRecurrence
ColumnsOp = ByColumn | Scan
"""They read columns wherever those lie, so that what splits a value copies nothing for them."""


class ColumnRange(NamedTuple):
    """Columns of a place; see PlimsollPart."""

    place: int
    first: int


@dataclass(frozen=True, slots=True)
class FusedColumns:
    """Columns, in the order in which the op reads its values, to a place; all floats, but what gates open and a target
    may be operands. `scratch`: where it works, if it needs a place for that.
    """

    op: ColumnsOp
    sources: tuple[ColumnRange, ...]
    target: int
    scratch: int | None = None

    @property
    def timed(self) -> OpKind:
        """As what it is timed."""
        return self.op.kind


STEP = 32
"""Values of a row that a product's widest step takes: heads whose rows products read are a multiple of it apart."""


def head_stride(width: int) -> int:
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
    """Queries to what they attend to, operands both, whose heads are `head_stride`."""

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


@dataclass(frozen=True, slots=True)
class ValueBuffer:
    """Room for a row of floats, or of operands, as wide as the widest value that lies there; see PlimsollPlace."""

    operands: bool
    width: int
    narrowest: int


@dataclass(frozen=True, slots=True)
class FusedEmbed:
    """Rows of the table to floats."""

    op: Embed
    target: int

    @property
    def timed(self) -> OpKind:
        """As what it is timed."""
        return OpKind.EMBED


@dataclass(frozen=True, slots=True)
class FusedPositions:
    """Rows of a table of positions, added to floats."""

    op: AddPositions
    target: int

    @property
    def timed(self) -> OpKind:
        """As what it is timed."""
        return self.op.kind


@dataclass(frozen=True, slots=True)
class FusedNorm:
    """The norm of `width` floats from the column `first` on, to what lies at the target; or x scale added to it.

    Without a norm they are copied.
    """

    norm: Norm | None
    width: int
    source: int
    target: int
    weight: Weight | None = None
    bias: Weight | None = None
    first: int = 0
    adds: bool = False
    scale: float = 1.0
    timed: OpKind = OpKind.NORM


@dataclass(frozen=True, slots=True)
class FusedProduct:
    """Operands to what `into` says; `scale` is that of a sum."""

    op: Product | GatedProduct
    source: int
    target: int
    into: Into
    scale: float = 1.0

    @property
    def timed(self) -> OpKind:
        """As what it is timed."""
        return self.op.kind


@dataclass(frozen=True, slots=True)
class FusedHeads:
    """Floats to queries as operands, and keys and values into the cache of `attend`; `turned`: the norm comes last."""

    attend: Attend
    norm: NormHeads | None
    rotate: Rotate | None
    turned: bool
    source: int
    target: int
    growth: Growth | None = None

    @property
    def timed(self) -> OpKind:
        """As what it is timed."""
        return OpKind.ROPE


@dataclass(frozen=True, slots=True)
class FusedAttend:
    """Queries to what they attend to, operands both."""

    op: Attend
    source: int
    target: int

    @property
    def timed(self) -> OpKind:
        """As what it is timed."""
        return OpKind.ATTENTION


@dataclass(frozen=True, slots=True)
class FusedAdd:
    """Floats and other floats x scale."""

    op: Add
    source: int
    added: int
    target: int

    @property
    def timed(self) -> OpKind:
        """As what it is timed."""
        return self.op.kind


@dataclass(frozen=True, slots=True)
class FusedRoute:
    """Floats to what the chosen experts weigh, and their numbers; `scores`: where it works."""

    op: Route
    source: int
    scores: int
    shares: int
    numbers: int

    @property
    def timed(self) -> OpKind:
        """As what it is timed."""
        return self.op.kind


@dataclass(frozen=True, slots=True)
class FusedExperts:
    """Floats, and who computes them, to floats: the sum x scale, or that added to what lies there."""

    op: Experts
    source: int
    shares: int
    numbers: int
    target: int
    adds: bool = False
    scale: float = 1.0

    @property
    def timed(self) -> OpKind:
        """As what it is timed."""
        return self.op.kind


@dataclass(frozen=True, slots=True)
class FusedGate:
    """Floats that pass as far as the source says."""

    op: Gate
    source: int
    target: int

    @property
    def timed(self) -> OpKind:
        """As what it is timed."""
        return self.op.kind


FusedOp = (
    FusedEmbed
    | FusedPositions
    | FusedNorm
    | FusedProduct
    | FusedHeads
    | FusedAttend
    | FusedAdd
    | FusedRoute
    | FusedExperts
    | FusedGate
    | FusedColumns
    | FusedLatentOp
)


@dataclass(frozen=True, slots=True)
class FusedProgram:
    """What the kernels walk."""

    ops: tuple[FusedOp, ...]
    places: tuple[ValueBuffer, ...]
