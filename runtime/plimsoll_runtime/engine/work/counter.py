"""Counts steps: their sizes, and the amounts from which `WorkModel` makes operations and bytes when they are read."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from plimsoll_runtime.engine.protocol.plan import ScheduledSequence
from plimsoll_runtime.engine.work.model import PLAIN, WorkModel
from plimsoll_runtime.engine.work.visible import Visible, experts_read

TOKEN_BOUNDS = tuple(2**power for power in range(15))
"""Upper bounds of the buckets of tokens in a step; the last bucket has none."""
SEQUENCE_BOUNDS = tuple(2**power for power in range(11))
"""Upper bounds of the buckets of sequences in a step; the last bucket has none."""

_START, _SAMPLE, _TARGETS, _IDS = (attrgetter(name) for name in ("start", "sample", "prompt_targets", "token_ids"))
_WHOLE_CONTEXT = Visible()


class StepCounts:
    """The sums of all steps' amounts, and the numbers of steps by size. Without a model only the PLAIN amounts count.

    A decode step costs one call and a few passes over its sequences in C. `tokens[i]` is the number of steps with at
    most `TOKEN_BOUNDS[i]` tokens and more than the bound before, `sequences` the same with SEQUENCE_BOUNDS.
    """

    def __init__(self, model: WorkModel | None = None) -> None:
        self._masks = () if model is None else model.masks
        self._mixtures = () if model is None else model.mixtures
        self.amounts: list[float] = [0] * (len(PLAIN) if model is None else model.amounts)
        self.tokens = [0] * (len(TOKEN_BOUNDS) + 1)
        self.sequences = [0] * (len(SEQUENCE_BOUNDS) + 1)

    def add(self, sequences: Sequence[ScheduledSequence], tokens: int) -> None:
        """Count a step of `tokens` tokens. A step without sequences counts as none."""
        if not sequences:
            return
        count = len(sequences)
        self.tokens[min((tokens - 1).bit_length(), len(TOKEN_BOUNDS))] += 1
        self.sequences[min((count - 1).bit_length(), len(SEQUENCE_BOUNDS))] += 1
        logits: int = sum(map(_SAMPLE, sequences))
        if any(map(_TARGETS, sequences)):
            logits += sum(map(len, map(_TARGETS, sequences)))
        amounts = self.amounts
        amounts[0] += 1
        amounts[1] += tokens
        amounts[2] += count
        amounts[3] += logits
        amounts[4] += logits > 0
        place = len(PLAIN)
        starts: list[int]
        spans: list[tuple[int, int]] = []
        if not self._masks:
            starts = []
        elif tokens == count:
            starts = list(map(_START, sequences))
        else:
            starts, spans = _divided(sequences)
        for mask in self._masks:
            if starts:
                seen = sum(starts) + len(starts) if mask == _WHOLE_CONTEXT else mask.of_decodes(starts)
                amounts[place] += seen
                amounts[place + 1] += seen
            if spans:
                read, pairs = mask.of_spans(spans)
                amounts[place] += read
                amounts[place + 1] += pairs
            place += 2
        for mixture in self._mixtures:
            amounts[place] += experts_read(mixture.experts, mixture.chosen, tokens)
            place += 1


def _divided(sequences: Sequence[ScheduledSequence]) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the positions of sequences with one row, and (first position, end) of those with several."""
    starts, spans = [], []
    for start, rows in zip(map(_START, sequences), map(len, map(_IDS, sequences)), strict=True):
        if rows == 1:
            starts.append(start)
        else:
            spans.append((start, start + rows))
    return starts, spans
