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
    """Return the expected seconds of loading if the model were not kept, weighted."""
    return frequency * reload_seconds * weight


def retention_value(clock: float, frequency: float, reload_seconds: float, weight: float, size: int) -> float:
    """Return the retention value per GiB. The lowest is evicted first.

    GreedyDual-Size-Frequency (Cherkasova, 1998): `clock + frequency x reload seconds x weight / size`. The clock is the
    host's at the model's last use. It rises to the value of each evicted model, so that unused models fall behind used
    ones.
    """
    return clock + retention_worth(frequency, reload_seconds, weight) * GIB / max(1, size)


class Pressure(IntEnum):
    """The shortage of memory as measured, beyond what the ledgers say."""

    NONE = 0
    SOME = 1
    FULL = 2

    @property
    def word(self) -> str:
        """The word for a report."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class ModelView:
    """One model whose sizes are known.

    - `grant`: its device memory. `image`: bytes of its image, if there is a complete one.
    - `since`: when its state began. `clock`: the host's clock of retention values at its last use.
    - `frequency`: decayed uses, including waiting requests. `active` requests are in flight, `waiting` wait for it.
    - `asked`: since when it is wanted awake, by requests, an operation or a pin. `retry_at`: it is not tried before.
    - `kv_used`: bytes of its KV cache that hold sequences. `kv_floor`: bytes below which it could not shrink in its
      last attempt. `kv_wanted`: the size to which it is being resized, if any.
    - `yielding`: it drains only for other models, and resumes if they do not need its memory.
    - `fill`: an operation wants its image in host memory. `due`: the predicted time of its next request.
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
        """Seconds until it is ready, from its current level, or from the level at which it would sleep."""
        return self.seconds.wake if self.image else self.seconds.from_disk

    @property
    def worth(self) -> float:
        """Expected seconds of loading if it is not kept awake, weighted."""
        return retention_worth(self.frequency, self.reload_seconds, self.weight)

    @property
    def value(self) -> float:
        """The retention value of keeping it awake."""
        return self.value_at(self.clock)

    def value_at(self, clock: float) -> float:
        """Return the value at another reading of the host's clock; for a model about to be used, the current one."""
        size = self.grant.total if self.grant is not None else self.sizes.least
        return retention_value(clock, self.frequency, self.reload_seconds, self.weight, size)

    @property
    def image_value(self) -> float:
        """The retention value of its image while it sleeps."""
        return retention_value(self.clock, self.frequency, self.seconds.load, self.weight, self.sizes.image)

    @property
    def spare_kv(self) -> int:
        """Bytes of its KV cache that it does not need now."""
        if self.grant is None or self.state is not State.RESIDENT or self.kv_wanted is not None:
            return 0
        return max(0, self.grant.kv - max(self.sizes.kv_minimum, self.kv_floor, self.kv_used))

    @property
    def coming(self) -> int:
        """Bytes that it is releasing."""
        if self.grant is None:
            return 0
        if self.state is State.DRAINING:
            return self.grant.total
        return 0 if self.kv_wanted is None else max(0, self.grant.kv - self.kv_wanted)


@dataclass(frozen=True, slots=True)
class HostView:
    """A host at one moment.

    `line`, `reserved` and `free` are the device ledger's. For `clock` see `retention_value`. `relieve`: the memory
    has just been measured, and something must be released if there is pressure.
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
