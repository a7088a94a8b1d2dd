"""Who attends, of backends that were measured: one for all sequences, or one for prompts and another for decodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from plimsoll_runtime.execution.attention.trial import Timing

DIVIDING = 1.05
"""How much slower a step may be where it is divided: rows of both parts are copied once more on their way. That is an
estimate: 2,048 rows of 32 heads are 16 MiB, some 10 us beside the 200 and more that a GPU attends for them."""
_BETWEEN = "+"


@dataclass(frozen=True, slots=True)
class Choice:
    """Names of backends: of sequences with several rows, and of decodes; twice the same where one attends for all."""

    chunks: str
    decodes: str

    @property
    def name(self) -> str:
        """What the backend is called that this is."""
        return self.chunks if self.chunks == self.decodes else f"{self.chunks}{_BETWEEN}{self.decodes}"

    @classmethod
    def of(cls, name: str) -> Choice:
        """The one that is called so."""
        chunks, _, decodes = name.partition(_BETWEEN)
        return cls(chunks, decodes or chunks)


def ranked(timings: Mapping[str, Timing], *, divide: bool) -> list[Choice]:
    """All that are worth trying, from the least time on; where it is the same, one for all comes first.

    Two backends are, where each part of a step takes less on its own one, and both together less than either alone.
    Only with `divide` are there any.
    """
    alone = {Choice(name, name): timing.total_ms for name, timing in timings.items()}
    found = alone | (dict(_pairs(timings)) if divide else {})
    return sorted(found, key=found.__getitem__)


def _pairs(timings: Mapping[str, Timing]) -> Iterator[tuple[Choice, float]]:
    """With their milliseconds."""
    for chunks, at_chunks in timings.items():
        for decodes, at_decodes in timings.items():
            taken = DIVIDING * (at_chunks.chunk_ms + at_decodes.decode_ms)
            if chunks != decodes and taken < min(at_chunks.total_ms, at_decodes.total_ms):
                yield Choice(chunks, decodes), taken
