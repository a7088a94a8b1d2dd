"""Settings of a host: its device, its memory, and its times."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll_runtime.engine.config import DEVICE, DEVICES
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.utils import option_values as values
from plimsoll_runtime.utils.option import Option, check_options, option

SLICE_LOADS = 2.0
"""A service slice, in multiples of a model's reload time. In a simulated pool of eight models that wake in 5 s, with
memory for four, 99 % of requests waited for less than 16 s, and for less than 29 s with slices of 30 s, which saved no
loading."""


MEMORY = Option(("host",), "device and memory")
WAITING = Option(("host",), "requests for models that sleep")


@dataclass(frozen=True, slots=True)
class Settings:
    """Sizes are in bytes, times in seconds. Raises UsageError for invalid values.

    - `service_slice`: less for a model that reloads quickly, see `turn`.
    - `free_seconds`: time until released memory must be free.
    - `first_back_off`, `longest_back_off`: delay after a failure, which doubles from one to the other.
    - `check_seconds`: interval of memory measurements.
    """

    device: str = option("auto", DEVICE, MEMORY, choices=DEVICES)
    line: float = option(
        0.9,
        "device memory that may be granted to models, in total: 90%, or on a CPU an amount such as 12GiB",
        MEMORY,
        metavar="SIZE",
        unit="share",
        parse=values.memory,
        pool="memory.*",
    )
    sleepers: int = option(
        0,
        "host memory for the weights of sleeping models, such as 8GiB; a model that has its weights there wakes "
        "without reading files. On a CPU this is part of the device's memory",
        MEMORY,
        unit="bytes",
        usual="0, models sleep on disk",
        pool="memory.*",
    )
    minimum_residency: float = option(
        10.0,
        "time after its wake during which a model is not evicted",
        MEMORY,
        unit="seconds",
        pool="eviction.minimumResidencySeconds",
    )
    service_slice: float = option(
        30.0,
        "minimum time that a model serves while requests wait for more models than fit into memory, so that "
        "models take turns",
        MEMORY,
        unit="seconds",
    )
    patience: float = option(
        30.0,
        "maximum time that a request waits before its model may evict models of higher value",
        WAITING,
        unit="seconds",
    )
    wait_seconds: float = option(
        120.0,
        "maximum time that a request waits for its model to wake; then it gets 503 and Retry-After",
        WAITING,
        flag="--hold-seconds",
        unit="seconds",
        minimum=0.1,
    )
    max_waiting: int = option(
        1024,
        "maximum number of requests that wait for a wake, of all models together",
        WAITING,
        flag="--max-held",
        minimum=0,
    )
    max_waiting_bytes: int = option(
        64 * 2**20, "maximum total size of the bodies of these requests", WAITING, flag="--max-held-bytes", unit="bytes"
    )
    load_seconds: float = option(
        600.0,
        "time limit for loading a model; a load that takes longer counts as failed",
        WAITING,
        unit="seconds",
        minimum=0.1,
    )
    free_seconds: float = 30.0
    first_back_off: float = 5.0
    longest_back_off: float = 300.0
    check_seconds: float = 2.0

    def __post_init__(self) -> None:
        check_options(self)
        if not 0 < self.line <= 1:
            raise UsageError(f"line must be a share of the memory, more than 0 and at most 1, not {self.line}")
        for name in ("free_seconds", "first_back_off", "check_seconds"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} must be more than 0, not {getattr(self, name)}")
        if self.longest_back_off < self.first_back_off:
            raise UsageError(
                f"longest_back_off ({self.longest_back_off}) must be at least first_back_off ({self.first_back_off})"
            )

    def turn(self, reload_seconds: float) -> float:
        """Return the seconds of service after which a model with this reload time may be evicted for a waiting one.

        A slice is twice the reload time, so that loading takes at most half as much of the device's time as serving,
        and models that reload quickly make others wait only briefly. It is at most `service_slice`, and at least
        `minimum_residency`.
        """
        return max(min(self.service_slice, SLICE_LOADS * reload_seconds), self.minimum_residency)
