"""The memory of a host during planning: as reported at first, then changed by each action of the plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from plimsoll_cluster.keys import ObjectKey
from plimsoll_operator.placement.records.host import Copy, Host
from plimsoll_operator.placement.records.level import Condition, Level, Pressure, State
from plimsoll_operator.placement.records.model import Model

RELIEVED = 0.9
"""Under full pressure, a host is reduced to this share of its line."""
MODELS_PER_HOST = 256
"""The most models of a host. A ModelHost lists no more, and the gateway sends requests only to listed models."""
LEVELS = {Level.RESIDENT: State.RESIDENT, Level.IN_HOST: State.IN_HOST, Level.ON_DISK: State.ON_DISK}


@dataclass(slots=True, eq=False)
class Known:
    """A model, and what all hosts and gateways together report of it.

    `device`: bytes of device memory while it is awake. `image`: bytes of host memory while it sleeps as an image.
    `load` and `wake`: seconds to become awake from files and from the image. All four are predictions until a host has
    measured them. `told`: requests a second over all hosts from `Demand.rate`, 0 if unknown. `lost`: the rate of awake
    copies on lost hosts. `waiting`: requests that wait at gateways and hosts, for up to `waited` seconds; `held` of
    them wait at hosts that wake the model themselves. `slots`: its copies on hosts that are not lost. `bulk`: `device`,
    or the pool's mean if `device` is 0. `busy`: the expected requests a second of each of its copies.
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
        """Requests a second over all hosts."""
        return max(self.told, self.lost + sum(slot.rate for slot in self.slots))

    def order(self) -> tuple[bool, int, bool, float, float, ObjectKey]:
        """Sort key of models: pinned, higher priority, waiting requests (longest wait first), then the highest rate."""
        model = self.model
        return (not model.pinned, -model.priority, not self.waiting, -self.waited, -self.rate, model.key)


@dataclass(slots=True, eq=False)
class Slot:
    """A model's copy on a host. `known` is None if the pool does not have the model; the copy is then unloaded.

    `device` and `image` are the bytes of device and host memory that it holds. `rate`: its requests a second.
    `current`: it has the model's current revision and device class, and is not being unloaded. `touched`: the current
    round has an action for it.
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
        """Whether no request uses it or waits for it, and no operation is running."""
        return self.state.settled and not self.copy.active and not self.copy.waiting

    @property
    def stays(self) -> bool:
        """Whether it is `current`, and the models of its host may stay."""
        return self.current and self.ledger.keeps

    @property
    def level(self) -> Level:
        """The level that it has, or is changing to."""
        if self.state.awake:
            return Level.RESIDENT
        return Level.IN_HOST if self.state is State.IN_HOST else Level.ON_DISK


class Ledger:
    """The memory of one host by copy, in bytes. Change it only by the methods, which update the sums.

    `keeps`: whether the host's models may stay. `placed` and `asked`: the sums of `Known.bulk` and `Known.busy` of its
    models.
    """

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
        """Bytes of device memory below the line; negative if more is used."""
        return self.line - self.device_used

    @property
    def free_images(self) -> int:
        """Bytes of host memory left for images; negative if more is used."""
        return self.host.sleepers.capacity - self.images_used

    def add(self, slot: Slot) -> None:
        """Add a copy. Raise ValueError if the host has the model already."""
        if slot.copy.model in self.slots:
            raise ValueError(f"host {self.key} already has a copy of {slot.copy.model}: remove that first")
        self.slots[slot.copy.model] = slot
        self.device_used += slot.device
        self.images_used += slot.image
        if slot.known is not None:
            self.placed += slot.known.bulk
            self.asked += slot.known.busy

    def remove(self, slot: Slot) -> None:
        """Remove a copy and the memory that it holds."""
        del self.slots[slot.copy.model]
        self.device_used -= slot.device
        self.images_used -= slot.image
        if slot.known is not None:
            self.placed -= slot.known.bulk
            self.asked -= slot.known.busy

    def set(self, slot: Slot, level: Level, device: int, image: int) -> None:
        """Set the level of a copy and the bytes that it holds there."""
        self.device_used += device - slot.device
        self.images_used += image - slot.image
        slot.state, slot.device, slot.image = LEVELS[level], device, image

    def leaving(self) -> int:
        """Return the bytes of device memory that draining copies will free."""
        return sum(slot.device for slot in self.slots.values() if slot.state is State.DRAINING)

    def awake(self) -> Iterator[Slot]:
        """Return the copies that are Resident (not Waking) and have no action in this round."""
        return (slot for slot in self.slots.values() if slot.state is State.RESIDENT and not slot.touched)

    def check_integrity(self) -> None:
        """Raise AssertionError if the sums differ from those of the copies."""
        assert self.device_used == self.host.reserved + sum(slot.device for slot in self.slots.values()), self.key
        assert self.images_used == self._foreign + sum(slot.image for slot in self.slots.values()), self.key
        assert all(slot.ledger is self and key == slot.copy.model for key, slot in self.slots.items()), self.key
        assert all(slot.device >= 0 and slot.image >= 0 for slot in self.slots.values()), self.key


def fewest(ordered: Sequence[Slot], room: int, held: Callable[[Slot], int]) -> tuple[Slot, ...] | None:
    """Return the first slots that together hold at least `room` bytes (`held` returns those of a slot), without slots
    that the sum does not need. Return None if all slots together hold less.
    """
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
