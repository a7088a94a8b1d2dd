"""Counts the amounts of steps. `WorkModel` makes floating point operations and bytes of them when they are read."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from plimsoll_runtime.engine.protocol.plan import ScheduledSequence
from plimsoll_runtime.engine.work.model import PLAIN, WorkModel
from plimsoll_runtime.engine.work.visible import experts_read

_SAMPLE, _TARGETS = attrgetter("sample"), attrgetter("prompt_targets")


class WorkCounter:
    """The sums of all steps' amounts. A decode step costs a few passes over its sequences, which run in C."""

    def __init__(self, model: WorkModel) -> None:
        self._masks = model.masks
        self._mixtures = model.mixtures
        self._sums: list[float] = [0] * model.amounts

    @property
    def amounts(self) -> tuple[float, ...]:
        """The sums so far, in the order of `WorkModel`."""
        return tuple(self._sums)

    def add(self, sequences: Sequence[ScheduledSequence], tokens: int) -> None:
        """Count a step of `tokens` tokens."""
        if not sequences:
            return
        count = len(sequences)
        logits: int = sum(map(_SAMPLE, sequences))
        if any(map(_TARGETS, sequences)):
            logits += sum(map(len, map(_TARGETS, sequences)))
        sums = self._sums
        sums[0] += 1
        sums[1] += tokens
        sums[2] += count
        sums[3] += logits
        sums[4] += logits > 0
        decodes, spans = [each.start for each in sequences], []
        if tokens > count:
            spans = [(each.start, each.start + len(each.token_ids)) for each in sequences if len(each.token_ids) > 1]
            decodes = [each.start for each in sequences if len(each.token_ids) == 1]
        place = len(PLAIN)
        for mask in self._masks:
            seen = mask.of_decodes(decodes) if decodes else 0
            sums[place] += seen
            sums[place + 1] += seen
            if spans:
                read, pairs = mask.of_spans(spans)
                sums[place] += read
                sums[place + 1] += pairs
            place += 2
        for mixture in self._mixtures:
            sums[place] += experts_read(mixture.experts, mixture.chosen, tokens)
            place += 1
