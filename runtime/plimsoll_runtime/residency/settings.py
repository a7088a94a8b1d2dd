"""What a host is told: on which device, with how much memory, and how patient everybody is."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll_runtime.engine.config import DEVICE, DEVICES
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.utils import option_values as values
from plimsoll_runtime.utils.option import Option, check_options, option

SLICE_LOADS = 2.0
"""A slice of service, in times of what bringing a model back takes. In a simulated pool of eight models
that wake in 5 s, with room for four, 99 in 100 requests waited for less than 16 s so, and for less than 29 s with
slices of 30 s, which saved no loading.
"""


MEMORY = Option(("host",), "device and memory")
WAITING = Option(("host",), "requests for models that sleep")


@dataclass(frozen=True, slots=True)
class Settings:
    """Sizes in bytes, times in seconds. Raises UsageError for what no host can do.

    `service_slice` is less for a model that is back soon, see `turn`. `free_seconds`: how long memory that was given
    back may take to be really free. `first_back_off`, `longest_back_off`: after a failure, doubling from one to the
    other. `check_seconds`: between two looks at the memory.
    """

    device: str = option("auto", DEVICE, MEMORY, choices=DEVICES)
    line: float = option(
        0.9,
        "how much of the device's memory may be granted to models: 90%, or on a CPU an amount such as 12GiB",
        MEMORY,
        metavar="SIZE",
        unit="share",
        parse=values.memory,
        pool="memory.*",
    )
    sleepers: int = option(
        0,
        "host memory for weights of models that sleep, such as 8GiB: waking one of them reads no file. On a CPU it "
        "is set aside from the same memory as the device's",
        MEMORY,
        unit="bytes",
        usual="none, models sleep on disk",
        pool="memory.*",
    )
    minimum_residency: float = option(
        10.0,
        "how long a model that was woken is not evicted",
        MEMORY,
        unit="seconds",
        pool="eviction.minimumResidencySeconds",
    )
    service_slice: float = option(
        30.0,
        "how long a model serves at least where those that requests wait for do not fit together and take turns",
        MEMORY,
        unit="seconds",
    )
    patience: float = option(
        30.0,
        "how long a request waits before its model gets a turn from models that are worth more",
        WAITING,
        unit="seconds",
    )
    wait_seconds: float = option(
        120.0,
        "how long a request waits for its model to wake; then it is refused with 503 and Retry-After",
        WAITING,
        flag="--hold-seconds",
        unit="seconds",
        minimum=0.1,
    )
    max_waiting: int = option(
        1024, "most requests that wait so, of all models together", WAITING, flag="--max-held", minimum=0
    )
    max_waiting_bytes: int = option(
        64 * 2**20, "most bytes that their bodies may have together", WAITING, flag="--max-held-bytes", unit="bytes"
    )
    load_seconds: float = option(
        600.0, "what takes longer to load counts as failed", WAITING, unit="seconds", minimum=0.1
    )
    free_seconds: float = 30.0
    first_back_off: float = 5.0
    longest_back_off: float = 300.0
    check_seconds: float = 2.0

    def __post_init__(self) -> None:
        check_options(self)
        if not 0 < self.line <= 1:
            raise UsageError(f"the line is a share of the memory between 0 and 1, not {self.line}")
        for name in ("free_seconds", "first_back_off", "check_seconds"):
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
