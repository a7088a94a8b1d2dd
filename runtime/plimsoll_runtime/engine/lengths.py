"""How long answers will be, learnt from those that have ended."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll_runtime.engine.sequence import SequenceState

ENOUGH = 8
"""Answers of a kind that must have ended before their mean is believed."""

MEMORY = 32
"""Answers over which the mean is taken, the older ones fading: so it follows when the traffic changes."""

SCALE = 1024


@dataclass(slots=True)
class _Mean:
    """A mean that forgets, in fixed point: `scaled` is SCALE times the mean."""

    count: int = 0
    scaled: int = 0

    def add(self, value: int) -> None:
        self.count += 1
        self.scaled += (value * SCALE - self.scaled) // min(self.count, MEMORY)


class LengthEstimator:
    """Means by kind of request: the magnitudes of prompt and limit, then the limit's alone, then all together.

    There are no more kinds than pairs of magnitudes, so it stays small.
    """

    def __init__(self) -> None:
        self._means: dict[tuple[int, ...], _Mean] = {}

    def expect(self, sequence: SequenceState) -> int:
        """Tokens that the answer will have, in all likelihood; never more than it may have."""
        limit = sequence.max_len - sequence.prompt_len
        if sequence.params.ignore_eos and not sequence.stop_ids:
            return limit
        for kind in _kinds(sequence):
            mean = self._means.get(kind)
            if mean is not None and mean.count >= ENOUGH:
                return max(1, min(limit, mean.scaled // SCALE))
        return limit

    def learn(self, sequence: SequenceState) -> None:
        """Learn from an answer that has ended by itself. One that may not end early (`ignore_eos`) tells nothing."""
        if sequence.params.ignore_eos and not sequence.stop_ids:
            return
        for kind in _kinds(sequence):
            self._means.setdefault(kind, _Mean()).add(len(sequence.output_ids))


def _kinds(sequence: SequenceState) -> tuple[tuple[int, ...], ...]:
    limit = (sequence.max_len - sequence.prompt_len).bit_length()
    return (limit, sequence.prompt_len.bit_length()), (limit,), ()
