"""What a recurrent layer keeps of a sequence, whatever its length."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, slots=True)
class StateShape:
    """One tensor of `shape` a sequence, in the dtype of the run or, where it is `wide`, in float32 in every run."""

    shape: tuple[int, ...]
    wide: bool = False

    def nbytes(self, element_bytes: int) -> int:
        """Bytes a sequence, in a run whose elements have so many."""
        return prod(self.shape) * (4 if self.wide else element_bytes)
