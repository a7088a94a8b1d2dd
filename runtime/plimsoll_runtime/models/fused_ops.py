"""What the CPU kernels walk: their ops, with the places of the values that each reads and writes."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll_kernels.cpu.op_records import Into
from plimsoll_runtime.models.fused_columns import FusedColumns
from plimsoll_runtime.models.fused_latent import FusedLatentOp
from plimsoll_runtime.models.op_times import OpKind
from plimsoll_runtime.models.ops.add import Add
from plimsoll_runtime.models.ops.attend import Attend
from plimsoll_runtime.models.ops.embed import AddPositions, Embed
from plimsoll_runtime.models.ops.experts import Experts, Gate
from plimsoll_runtime.models.ops.heads import NormHeads, Rotate
from plimsoll_runtime.models.ops.product import GatedProduct, Product
from plimsoll_runtime.models.ops.route import Route
from plimsoll_runtime.models.ops.weight import Weight
from plimsoll_runtime.models.spec.attention import Growth
from plimsoll_runtime.models.spec.norm import Norm


@dataclass(frozen=True, slots=True)
class Place:
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
    places: tuple[Place, ...]
