"""A host where a model could be awake, and what that would cost."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from plimsoll_cluster.keys import ObjectKey
from plimsoll_operator.placement.ledger import Ledger, Slot
from plimsoll_operator.placement.records.plan import Refused


class Grounds(IntEnum):
    """What a model that should be awake may displace.

    FREE: nothing. LOWER: idle models of lower priority. VALUE: also idle ones of its own that are worth less than half
    of what it is. DEMAND: requests wait for it; also idle ones of its own priority, as long as bringing them back is
    not expected to cost more, within the least residency, than waking it. TURN: they have waited long enough; idle ones
    of its own priority, whatever they are worth. PIN: whatever is idle and not pinned.
    """

    FREE = 0
    LOWER = 1
    VALUE = 2
    DEMAND = 3
    TURN = 4
    PIN = 5


@dataclass(frozen=True, slots=True)
class HostOption:
    """In the order in which they count: `seconds` of loading that it takes, `lost` (seconds of loading an hour that the
    victims' models are then expected to take), whether the model lies elsewhere now, spread and affinity (how many
    wishes it disregards), and the share of the line that is taken afterwards.

    With an `obstacle` it cannot be had, and `note` says why.
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
        """The least is the best."""
        return (self.seconds, self.lost, self.own is None, self.disregarded, self.taken, self.ledger.key)
