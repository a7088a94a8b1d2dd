"""Makes the work model of a program: the costs of its ops for one of each amount that a step is counted in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from plimsoll_runtime.engine.work.model import Factors, Mixture, WorkModel
from plimsoll_runtime.engine.work.visible import Visible
from plimsoll_runtime.models.ops.cost import OpCost, OpKind, StepRows, total
from plimsoll_runtime.models.program import Program

KINDS: Mapping[OpKind, str] = {
    OpKind.ATTENTION: "attention",
    OpKind.QKV: "products",
    OpKind.OUTPUT: "products",
    OpKind.GATE_UP: "products",
    OpKind.DOWN: "products",
    OpKind.EXPERTS: "experts",
    OpKind.HEAD: "head",
}
"""The kinds of work, by kind of op; all others are "other"."""
OTHER = "other"

Cost = Callable[[StepRows], OpCost]


def work_model(program: Program, element_bytes: int) -> WorkModel:
    """Return the work model of a program that runs with elements of this size.

    Its work differs from `Program.step_cost` by at most a byte for each layer of experts, because that rounds.
    """
    ops: dict[str, list[Cost]] = {}
    for op in program.ops:
        ops.setdefault(KINDS.get(op.kind, OTHER), []).append(_sized(op.cost, element_bytes))
    probe = _Probe()
    for costs in ops.values():
        _cost(costs, probe)
    masks = tuple(key for key in probe.asked if isinstance(key, Visible))
    mixtures = tuple(key for key in probe.asked if isinstance(key, Mixture))
    units = [_Probe(), _Probe(count=1), _Probe(group=1), _Probe(), _Probe(), *_units(masks, mixtures)]
    factors = {kind: _factors([_cost(costs, unit) for unit in units]) for kind, costs in ops.items()}
    head = _head(_sized(program.head.cost, element_bytes), len(units))
    if any(head.flops) or any(head.bytes):
        factors[KINDS[OpKind.HEAD]] = head
    return WorkModel(masks, mixtures, factors)


@dataclass(frozen=True, slots=True)
class _Probe(StepRows):
    """Rows with one of a single amount, which no real step has. `asked` are the masks and mixtures of the ops.

    `group`: number of sequences. `unit`: the mask or mixture with one, and for a mask whether that is a token or a
    pair.
    """

    count: int = 0
    logits: int = 0
    spans: Sequence[tuple[int, int]] = ()
    group: int = 0
    unit: tuple[Visible | Mixture, int] | None = None
    asked: dict[Visible | Mixture, None] = field(default_factory=dict)

    @property
    def sequences(self) -> int:
        return self.group

    def seen(self, mask: Visible) -> tuple[int, int]:
        self.asked[mask] = None
        return int(self.unit == (mask, 0)), int(self.unit == (mask, 1))

    def experts_read(self, experts: int, chosen: int) -> float:
        mixture = Mixture(experts, chosen)
        self.asked[mixture] = None
        return float(self.unit == (mixture, 0))


def _units(masks: Sequence[Visible], mixtures: Sequence[Mixture]) -> Iterator[_Probe]:
    for mask in masks:
        yield _Probe(unit=(mask, 0))
        yield _Probe(unit=(mask, 1))
    for mixture in mixtures:
        yield _Probe(unit=(mixture, 0))


def _sized(cost: Callable[[StepRows, int], OpCost], element_bytes: int) -> Cost:
    return lambda rows: cost(rows, element_bytes)


def _cost(costs: Sequence[Cost], rows: StepRows) -> OpCost:
    return total(cost(rows) for cost in costs)


def _factors(costs: Sequence[OpCost]) -> Factors:
    """Return the factors of ops, from their cost without any amount and that with one of each."""
    nothing, *units = costs
    return Factors(
        (nothing.flops, *(each.flops - nothing.flops for each in units)),
        (nothing.bytes, *(each.bytes - nothing.bytes for each in units)),
    )


def _head(cost: Cost, amounts: int) -> Factors:
    """Return the factors of a head, whose cost depends on the number of logits alone."""
    one, two = cost(_Probe(logits=1)), cost(_Probe(logits=2))
    each, once = (two.flops - one.flops, two.bytes - one.bytes), (2 * one.flops - two.flops, 2 * one.bytes - two.bytes)
    flops, moved = ((0, 0, 0, own, first, *[0] * (amounts - 5)) for own, first in zip(each, once, strict=True))
    return Factors(flops, moved)
