"""The memory and time that a model needs: predicted before it is loaded, corrected by measurements."""

from __future__ import annotations

from dataclasses import dataclass

GUESSED_BYTES_A_SECOND = 500e6
"""Assumed for a load that was never measured: weights are read from a network volume and packed."""
GUESSED_WAKE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """The memory of a model, in bytes.

    - `image`: host memory of its weights while it sleeps.
    - `weights`: device memory while it is awake. If device and host memory are the same, that is the image and what the
      engine keeps in addition.
    - `workspace`: its process and its largest step.
    - `kv_minimum`: the smallest KV cache that it may be granted. `kv_useful`: the largest that it could ever fill.
    """

    image: int
    weights: int
    workspace: int
    kv_minimum: int
    kv_useful: int

    def __post_init__(self) -> None:
        if min(self.image, self.weights, self.workspace, self.kv_minimum) < 0 or self.kv_useful < self.kv_minimum:
            raise ValueError(f"invalid sizes of a model: {self}")

    @property
    def least(self) -> int:
        """Minimum bytes of the device for a wake."""
        return self.weights + self.workspace + self.kv_minimum


@dataclass(frozen=True, slots=True)
class Seconds:
    """Seconds from disk into the image (`load`), and from the image until the model is ready (`wake`)."""

    load: float
    wake: float = GUESSED_WAKE_SECONDS

    @classmethod
    def guessed(cls, weights: int) -> Seconds:
        """Return a guess before any measurement."""
        return cls(weights / GUESSED_BYTES_A_SECOND)

    @property
    def from_disk(self) -> float:
        """Seconds until a model without an image is ready."""
        return self.load + self.wake

    def loaded(self, seconds: float) -> Seconds:
        """Return the times after a measurement of `from_disk`: the wake time is kept, the rest is the load."""
        return Seconds(max(0.0, seconds - self.wake), min(self.wake, seconds))

    def woken(self, seconds: float, *, loaded: bool) -> Seconds:
        """Return the times after a measured wake. `loaded`: `from_disk` was measured before, and is kept."""
        return Seconds(max(0.0, self.from_disk - seconds) if loaded else self.load, seconds)


def size_text(size: float) -> str:
    """Format bytes for people as GiB, or as MiB below 1 GiB.

    >>> size_text(3 * 2**29), size_text(2**20)
    ('1.50 GiB', '1.0 MiB')
    """
    return f"{size / 2**30:.2f} GiB" if abs(size) >= 2**30 else f"{size / 2**20:.1f} MiB"
