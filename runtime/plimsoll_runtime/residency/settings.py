"""What a host is told: on which device, with how much memory, and how patient everybody is."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll_runtime.engine.config import DEVICES
from plimsoll_runtime.errors import UsageError

SLICE_LOADS = 2.0
"""A slice of service, in times of what bringing a model back takes. In a simulated pool of eight models
that wake in 5 s, with room for four, 99 in 100 requests waited for less than 16 s so, and for less than 29 s with
slices of 30 s, which saved no loading.
"""


@dataclass(frozen=True, slots=True)
class Settings:
    """Sizes in bytes, times in seconds. Raises UsageError for what no host can do.

    `device`: what models run on, as `EngineConfig.device` has it.
    `line`: the share of the device's memory that may be granted. `sleepers`: host memory for images of sleeping models.
    `minimum_residency`: nothing is evicted sooner. `service_slice`: how long a model serves at the most, before those
    that requests wait for take turns (less where it is back soon, see `turn`). `patience`: how long a request waits at
    most before its model gets a turn from others that are worth more. `wait_seconds`, `max_waiting`,
    `max_waiting_bytes`: bounds of what waits for a model.
    `load_seconds`: what takes longer from disk until it answers is broken. `free_seconds`: how long memory that was
    given back may take to be really free. `first_back_off`, `longest_back_off`: after a failure, doubling from one to
    the other. `check_seconds`: between two looks at the memory.
    """

    device: str = "auto"
    line: float = 0.9
    sleepers: int = 0
    minimum_residency: float = 10.0
    service_slice: float = 30.0
    patience: float = 30.0
    wait_seconds: float = 120.0
    max_waiting: int = 1024
    max_waiting_bytes: int = 64 * 2**20
    load_seconds: float = 600.0
    free_seconds: float = 30.0
    first_back_off: float = 5.0
    longest_back_off: float = 300.0
    check_seconds: float = 2.0

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise UsageError(f"device must be one of {', '.join(DEVICES)}, not {self.device}")
        if not 0 < self.line <= 1:
            raise UsageError(f"the line is a share of the memory between 0 and 1, not {self.line}")
        for name in ("sleepers", "minimum_residency", "service_slice", "patience", "max_waiting", "max_waiting_bytes"):
            if not getattr(self, name) >= 0:
                raise UsageError(f"{name} must not be negative: {getattr(self, name)}")
        for name in ("wait_seconds", "load_seconds", "free_seconds", "first_back_off", "check_seconds"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} must be more than 0, not {getattr(self, name)}")
        if self.longest_back_off < self.first_back_off:
            raise UsageError(
                f"longest_back_off ({self.longest_back_off}) must be at least first_back_off ({self.first_back_off})"
            )

    def turn(self, reload_seconds: float) -> float:
        """Seconds of service after which a model that is back in so many may be made to give way to one that waits.

        Twice what bringing it back takes is a slice, up to `service_slice`: then loading has at most half as much of
        the device's time as serving, and who is back soon makes nobody wait for long.
        """
        return max(min(self.service_slice, SLICE_LOADS * reload_seconds), self.minimum_residency)
