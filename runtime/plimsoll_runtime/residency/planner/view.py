"""The input of a plan: models, memory and retention values. Times are seconds of one monotonic clock."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

from plimsoll_runtime.residency.ledger import Grant
from plimsoll_runtime.residency.sizes import Seconds, Sizes
from plimsoll_runtime.residency.spec import ModelName
from plimsoll_runtime.residency.states import State

GIB = 2**30


def retention_worth(frequency: float, reload_seconds: float, weight: float) -> float:
    """Expected seconds of loading if it were not kept, weighted."""
    return frequency * reload_seconds * weight


def retention_value(clock: float, frequency: float, reload_seconds: float, weight: float, size: int) -> float:
    """The retention value, a GiB; what has the least goes first.

    GreedyDual-Size-Frequency (Cherkasova, 1998): `clock + frequency x reload seconds x weight / size`. The clock is the
    host's at the model's last use. It has risen to the value of what was evicted last, so that unused models fall
    behind used ones.
    """
    return clock + retention_worth(frequency, reload_seconds, weight) * GIB / max(1, size)


class Pressure(IntEnum):
    """How short memory is, beyond what the ledgers say."""

    NONE = 0
    SOME = 1
    FULL = 2

    @property
    def word(self) -> str:
        """In a report."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class ModelView:
    """One model whose sizes are known.

    `grant` is what it has of the device, `image` the bytes of its image, if there is one. `since` is when its state
    began, `clock` the host's clock of values at its last use. `frequency` counts requests that wait as uses. `active`
    requests are in flight, `waiting` wait for it to wake, `asked` is since when it is wanted (by them or by an
    operation). Before `retry_at` it is not tried. `kv_used` and `kv_floor` are bytes of its KV cache that hold
    sequences, and below which it could not shrink when it last tried; `kv_wanted` is what it is
    being brought to, if it is.
    `yielding`: it drains for others only, and may go on if they need its room no more. `fill`: an operation wants its
    image in host memory. `due`: when its rhythm foretells the next request.
    """

    name: ModelName
    state: State
    sizes: Sizes
    seconds: Seconds
    since: float
    grant: Grant | None = None
    image: int = 0
    frequency: float = 0.0
    clock: float = 0.0
    last_used: float = -math.inf
    weight: float = 1.0
    priority: int = 0
    pinned: bool = False
    active: int = 0
    waiting: int = 0
    asked: float | None = None
    retry_at: float = -math.inf
    kv_used: int = 0
    kv_floor: int = 0
    kv_wanted: int | None = None
    yielding: bool = False
    fill: bool = False
    due: float | None = None

    @property
    def reload_seconds(self) -> float:
        """Until it answers, from where it is, or would be once it slept."""
        return self.seconds.wake if self.image else self.seconds.from_disk

    @property
    def worth(self) -> float:
        """Expected seconds of loading where it is not kept awake, weighted."""
        return retention_worth(self.frequency, self.reload_seconds, self.weight)

    @property
    def value(self) -> float:
        """What keeping it awake is worth."""
        return self.value_at(self.clock)

    def value_at(self, clock: float) -> float:
        """The same for another reading of the host's clock: of one that is about to be used, today's."""
        size = self.grant.total if self.grant is not None else self.sizes.least
        return retention_value(clock, self.frequency, self.reload_seconds, self.weight, size)

    @property
    def image_value(self) -> float:
        """What keeping its image is worth while it sleeps."""
        return retention_value(self.clock, self.frequency, self.seconds.load, self.weight, self.sizes.image)

    @property
    def spare_kv(self) -> int:
        """Bytes of its KV cache that it can do without now."""
        if self.grant is None or self.state is not State.RESIDENT or self.kv_wanted is not None:
            return 0
        return max(0, self.grant.kv - max(self.sizes.kv_minimum, self.kv_floor, self.kv_used))

    @property
    def coming(self) -> int:
        """Bytes that it is giving back."""
        if self.grant is None:
            return 0
        if self.state is State.DRAINING:
            return self.grant.total
        return 0 if self.kv_wanted is None else max(0, self.grant.kv - self.kv_wanted)


@dataclass(frozen=True, slots=True)
class HostView:
    """A host at one moment.

    `line`, `reserved` and `free` are the device ledger's. `clock` is that of values. `relieve`: the memory was looked
    at anew, and something must be given up if there is pressure.
    """

    now: float
    models: tuple[ModelView, ...]
    line: int
    reserved: int
    free: int
    shared: bool = True
    clock: float = 0.0
    pressure: Pressure = Pressure.NONE
    relieve: bool = False
