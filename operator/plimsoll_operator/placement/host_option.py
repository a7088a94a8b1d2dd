"""A host on which a model could be awake, with its costs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from plimsoll_cluster.keys import ObjectKey
from plimsoll_operator.placement.ledger import Ledger, Slot
from plimsoll_operator.placement.records.plan import Refused


class Grounds(IntEnum):
    """Which idle models may be evicted for a model that should be awake. A higher value allows more victims.

    - FREE: none.
    - LOWER: models of lower priority.
    - VALUE: also models of the same priority that are worth less than half as much.
    - DEMAND (requests wait for the model): also models of the same priority, if loading them again is expected to cost
      no more, within the minimum residency, than loading this model.
    - TURN (its requests have waited longer than `Rules.patience`): all models of the same priority.
    - PIN: all models that are not pinned.
    """

    FREE = 0
    LOWER = 1
    VALUE = 2
    DEMAND = 3
    TURN = 4
    PIN = 5


@dataclass(frozen=True, slots=True)
class HostOption:
    """The costs of a model awake on a host, or of its files there, in order of importance.

    `seconds` of loading or waking, 0 for files. `lost`: the weighted seconds of loading that evicting its victims is
    expected to cost within a half-life (five minutes). Whether the model has no copy there. `disregarded`: the number
    of spread and affinity preferences that it violates, plus 1 for memory pressure. `taken`: the share of the line that
    is used afterwards; for files, `PoolIndex.share`.

    If `obstacle` is set, the host is not possible, and `note` says why.
    """

    ledger: Ledger
    own: Slot | None
    seconds: float
    evictions: tuple[Slot, ...] = ()
    lost: float = 0.0
    disregarded: int = 0
    taken: float = 0.0
    obstacle: Refused | None = None
    note: str = ""

    @property
    def order(self) -> tuple[float, float, bool, int, float, ObjectKey]:
        """Sort key; the lowest is the best option."""
        return (self.seconds, self.lost, self.own is None, self.disregarded, self.taken, self.ledger.key)
