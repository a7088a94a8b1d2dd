"""Log probabilities of prompt tokens: found on the device, told when somebody has them on the host."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from plimsoll_kernels.log_probabilities.reports import Reports
from plimsoll_runtime.engine.protocol.plan import TokenLogprob
from plimsoll_runtime.execution.sampling.logprobs import told


class PromptReport(NamedTuple):
    """Of some tokens of a slot's prompt, with so many `alternatives` each: what was found, on the logits' device."""

    slot: int
    tokens: Sequence[int]
    alternatives: int
    found: Reports


def told_by_slot(reports: Sequence[PromptReport], found: Iterable[Reports]) -> dict[int, list[TokenLogprob]]:
    """What there is to tell of each slot; `found` is the same as in the reports, in their order, on the host."""
    by_slot: dict[int, list[TokenLogprob]] = {}
    for report, there in zip(reports, found, strict=True):
        tokens = told(report.tokens, there, [report.alternatives] * len(report.tokens))
        by_slot.setdefault(report.slot, []).extend(tokens)
    return by_slot
