"""What a model takes of memory and of time: predicted before it is loaded, corrected by what was measured."""

from __future__ import annotations

from dataclasses import dataclass

GUESSED_BYTES_A_SECOND = 500e6
"""For a load that was never measured: weights read from a network volume and packed. Measured ones take its place."""
GUESSED_WAKE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes. `image`: in host memory, while it sleeps. `weights`: on the device, while it is awake; where device and
    host memory are one, that is the same image with what the engine keeps beside it.

    `workspace`: of its process and its largest step. `kv_minimum` is the least KV cache that it may be granted,
    `kv_useful` the most that it could ever fill.
    """

    image: int
    weights: int
    workspace: int
    kv_minimum: int
    kv_useful: int

    def __post_init__(self) -> None:
        if min(self.image, self.weights, self.workspace, self.kv_minimum) < 0 or self.kv_useful < self.kv_minimum:
            raise ValueError(f"no model has these sizes: {self}")

    @property
    def least(self) -> int:
        """Bytes of the device without which it cannot wake."""
        return self.weights + self.workspace + self.kv_minimum


@dataclass(frozen=True, slots=True)
class Seconds:
    """How long a model takes from disk into its image (`load`), and from there until it answers (`wake`)."""

    load: float
    wake: float = GUESSED_WAKE_SECONDS

    @classmethod
    def guessed(cls, weights: int) -> Seconds:
        """Before anything was measured."""
        return cls(weights / GUESSED_BYTES_A_SECOND)

    @property
    def from_disk(self) -> float:
        """Until a model of which nothing is in memory answers."""
        return self.load + self.wake

    def loaded(self, seconds: float) -> Seconds:
        """After a load that took so long from disk until it answered."""
        return Seconds(max(0.0, seconds - self.wake), min(self.wake, seconds))

    def woken(self, seconds: float, *, loaded: bool) -> Seconds:
        """After a wake that took so long. Where it was `loaded` before, that load took as long as it did."""
        return Seconds(max(0.0, self.from_disk - seconds) if loaded else self.load, seconds)


def size_text(size: float) -> str:
    """Bytes for people: 1.5 GiB, or MiB where that says more.

    >>> size_text(3 * 2**29), size_text(2**20)
    ('1.50 GiB', '1.0 MiB')
    """
    return f"{size / 2**30:.2f} GiB" if abs(size) >= 2**30 else f"{size / 2**20:.1f} MiB"
