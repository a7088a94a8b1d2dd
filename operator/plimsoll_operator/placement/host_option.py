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
    - VALUE: also models of the same priority, if they are together worth at most half as much as the new replica.
    - DEMAND (requests wait for the model): also models of the same priority, if loading them again is expected to cost
      no more, within the minimum residency, than loading this model.
    - TURN (its requests have waited for at least `Rules.patience`): also all models of the same priority.
    - PIN (the model is pinned): models of any priority.

    Pinned models of the current revision and models within the minimum residency are never evicted.
    """

    FREE = 0
    LOWER = 1
    VALUE = 2
    DEMAND = 3
    TURN = 4
    PIN = 5


@dataclass(frozen=True, slots=True)
class HostOption:
    """A host where a model could be awake, or could have its files, with the costs in order of importance.

    `seconds`: to load or wake the model there, 0 for files. `lost`: the weighted seconds of loading that putting the
    victims (`evictions`) to sleep is expected to cost within a half-life (five minutes). `own`: the model's copy on the
    host; None, which is worse, if it has none. `disregarded`: the number of spread and affinity preferences that the
    host violates, plus 1 if it is under memory pressure. `taken`: the share of the host's line that is used once the
    model is awake; for files, `PoolIndex.share`.

    If `obstacle` is set, the model cannot be awake on the host, and `note` says why.
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
