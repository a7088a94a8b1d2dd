"""The memory of a host while the planner works: its report at first, then changed by each action of the plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from plimsoll_cluster.keys import ObjectKey
from plimsoll_operator.placement.records.host import Copy, Host
from plimsoll_operator.placement.records.level import Condition, Level, Pressure, State
from plimsoll_operator.placement.records.model import Model

RELIEVED = 0.9
"""Share of the line that a host under full pressure is brought down to."""
MODELS_PER_HOST = 256
"""No host is given more: a ModelHost lists as many, and the gateway sends requests only to models that are listed."""
LEVELS = {Level.RESIDENT: State.RESIDENT, Level.IN_HOST: State.IN_HOST, Level.ON_DISK: State.ON_DISK}


@dataclass(slots=True, eq=False)
class Known:
    """What is known of a model over all hosts.

    `device` and `image` are its bytes awake and asleep in host memory, `load` and `wake` the seconds from files and
    from the image: as measured, or as predicted while nobody has. `told` is the rate in requests a second that somebody
    else knows of, `lost` that of hosts that are not there any more, where it was awake. `waiting` requests have waited
    for `waited` seconds at the most, `held` of them at hosts that wake it for them. `slots` are its copies on hosts
    that are there. `bulk` is `device`, or what is usual where nobody knows it, and `busy` the rate that each of the
    copies it is to have is expected to serve.
    """

    model: Model
    device: int
    image: int
    load: float
    wake: float
    told: float = 0.0
    waiting: int = 0
    waited: float = 0.0
    held: int = 0
    lost: float = 0.0
    bulk: int = 0
    busy: float = 0.0
    slots: list[Slot] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Requests a second over all hosts, now."""
        return max(self.told, self.lost + sum(slot.rate for slot in self.slots))

    def order(self) -> tuple[bool, int, bool, float, float, ObjectKey]:
        """Who is served first: pinned, higher priority, requests that wait (longest first), then the busiest."""
        model = self.model
        return (not model.pinned, -model.priority, not self.waiting, -self.waited, -self.rate, model.key)


@dataclass(slots=True, eq=False)
class Slot:
    """A model on a host. `known` is None for what the pool does not know: it belongs to nobody and goes.

    `device` and `image` are the bytes that it holds. `touched`: this plan has told it something already.
    """

    ledger: Ledger
    copy: Copy
    known: Known | None
    state: State
    device: int
    image: int
    rate: float
    current: bool
    touched: bool = False

    @property
    def idle(self) -> bool:
        """Whether nobody would notice if it were told to do something."""
        return self.state.settled and not self.copy.active and not self.copy.waiting

    @property
    def stays(self) -> bool:
        """Whether it is of the present revision, on a host that it may stay on."""
        return self.current and self.ledger.keeps

    @property
    def level(self) -> Level:
        """The level that it is at, or is on its way to."""
        if self.state.awake:
            return Level.RESIDENT
        return Level.IN_HOST if self.state is State.IN_HOST else Level.ON_DISK


class Ledger:
    """The memory of one host and who has it. Bytes; the one writer of its sums."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.key = host.key
        self.slots: dict[ObjectKey, Slot] = {}
        self.device_used = host.reserved
        self.images_used = max(0, host.sleepers.used - sum(copy.host for copy in host.models if not copy.state.awake))
        self.line = int(host.line * RELIEVED) if host.pressure is Pressure.FULL else host.line
        self.keeps = host.condition in (Condition.READY, Condition.CORDONED)
        self.placed, self.asked = 0, 0.0
        self._foreign = self.images_used
        self._open = host.condition is Condition.READY and host.pressure is not Pressure.FULL

    @property
    def takes(self) -> bool:
        """Whether another model may be placed on the host."""
        return self._open and len(self.slots) < MODELS_PER_HOST

    @property
    def free(self) -> int:
        """Bytes of device memory below the line; negative where it is overdrawn."""
        return self.line - self.device_used

    @property
    def free_images(self) -> int:
        """Bytes of host memory for sleepers; negative where it is overdrawn."""
        return self.host.sleepers.capacity - self.images_used

    def add(self, slot: Slot) -> None:
        """Enter a copy. Raises ValueError where the model is here already."""
        if slot.copy.model in self.slots:
            raise ValueError(f"{self.key} holds {slot.copy.model} already")
        self.slots[slot.copy.model] = slot
        self.device_used += slot.device
        self.images_used += slot.image
        if slot.known is not None:
            self.placed += slot.known.bulk
            self.asked += slot.known.busy

    def remove(self, slot: Slot) -> None:
        """Take a copy out, with all that it holds."""
        del self.slots[slot.copy.model]
        self.device_used -= slot.device
        self.images_used -= slot.image
        if slot.known is not None:
            self.placed -= slot.known.bulk
            self.asked -= slot.known.busy

    def set(self, slot: Slot, level: Level, device: int, image: int) -> None:
        """Bring a copy to a level at which it holds so much."""
        self.device_used += device - slot.device
        self.images_used += image - slot.image
        slot.state, slot.device, slot.image = LEVELS[level], device, image

    def leaving(self) -> int:
        """Bytes of device memory that are being given back already."""
        return sum(slot.device for slot in self.slots.values() if slot.state is State.DRAINING)

    def awake(self) -> Iterator[Slot]:
        """Copies that are awake and told nothing yet."""
        return (slot for slot in self.slots.values() if slot.state is State.RESIDENT and not slot.touched)

    def check_integrity(self) -> None:
        """Raises AssertionError where the sums are not those of the copies."""
        assert self.device_used == self.host.reserved + sum(slot.device for slot in self.slots.values()), self.key
        assert self.images_used == self._foreign + sum(slot.image for slot in self.slots.values()), self.key
        assert all(slot.ledger is self and key == slot.copy.model for key, slot in self.slots.items()), self.key
        assert all(slot.device >= 0 and slot.image >= 0 for slot in self.slots.values()), self.key


def fewest(ordered: Sequence[Slot], room: int, held: Callable[[Slot], int]) -> tuple[Slot, ...] | None:
    """The first ones that hold so many bytes together, less those that turn out not to be needed."""
    chosen: list[Slot] = []
    found = 0
    for slot in ordered:
        if found >= room:
            break
        chosen.append(slot)
        found += held(slot)
    if found < room:
        return None
    for slot in reversed(chosen[:-1]):
        if found - held(slot) >= room:
            chosen.remove(slot)
            found -= held(slot)
    return tuple(chosen)
