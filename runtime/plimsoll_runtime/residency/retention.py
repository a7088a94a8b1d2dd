"""What it is worth to keep a model where it is: GreedyDual-Size-Frequency (Cherkasova, 1998).

`value = clock + frequency x reload seconds x weight / size`. The clock is the host's at the model's last use; it has
risen to the value of whatever was evicted last, so that what nobody uses any more is passed by what somebody does.
"""

from __future__ import annotations

GIB = 2**30


def retention_worth(frequency: float, reload_seconds: float, weight: float) -> float:
    """Expected seconds of loading if it were not kept, weighted."""
    return frequency * reload_seconds * weight


def retention_value(clock: float, frequency: float, reload_seconds: float, weight: float, size: int) -> float:
    """The retention value, a GiB; what has the least goes first."""
    return clock + retention_worth(frequency, reload_seconds, weight) * GIB / max(1, size)
