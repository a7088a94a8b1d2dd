"""The sampler: one batched sampling of tokens for each step, with log probabilities of outputs and prompts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from plimsoll_kernels.log_probabilities.op import log_probabilities
from plimsoll_kernels.log_probabilities.reports import Reports
from plimsoll_kernels.sampling.op import sample
from plimsoll_runtime.engine.protocol.messages import LogprobEntry
from plimsoll_runtime.engine.protocol.plan import ScheduledSequence, SequenceOutput, SlotInit
from plimsoll_runtime.execution.sampling.constraints import ConstrainedRows, Recorded
from plimsoll_runtime.execution.sampling.logits_processors import adjust
from plimsoll_runtime.execution.sampling.state import NO_TOKEN, PlainRows, Rows, SamplingState
from plimsoll_runtime.models.decoder import Decoder
from plimsoll_runtime.models.layers.device_copy import to_device
from plimsoll_runtime.structured.matcher import Grammars

PROMPT_LOGITS = 2**25
"""The most logits (rows x vocabulary) that are computed at once for prompt log probabilities: 128 MiB of float32."""


def reports_of(logits: Tensor, tokens: Tensor, top: Sequence[int]) -> Reports:
    """For each row its token's log probability and rank, and the `top[i]` most likely tokens, on the logits' device,
    where nobody waits for it.

    logits float32 [R, V], tokens int64 [R]. Ranks count from 1; equal logits share the better rank. More tokens than
    the vocabulary has are not told.
    """
    wanted = [min(count, logits.shape[-1]) for count in top]
    alternatives = to_device(np.array(wanted, dtype=np.int32), logits.device)
    return log_probabilities(logits, tokens, alternatives, max(wanted, default=0))


def token_logprobs(tokens: Sequence[int], found: Reports, top: Sequence[int]) -> list[LogprobEntry]:
    """What there is to tell of tokens, of which `top[i]` alternatives are wanted."""
    chosen = zip(tokens, found.chosen.tolist(), found.ranks.tolist(), strict=True)
    if not any(top):
        return [LogprobEntry(token, logprob, rank) for token, logprob, rank in chosen]
    alternative = zip(found.top_tokens.tolist(), found.top.tolist(), top, strict=True)
    return [
        LogprobEntry(token, logprob, rank, list(zip(ids[:count], values[:count], strict=True)))
        for (token, logprob, rank), (ids, values, count) in zip(chosen, alternative, strict=True)
    ]


NOT_FINITE = "the model's logits are not finite (NaN or infinity): its weights or the chosen dtype are at fault"


class Sampler:
    """Chooses one token for each row of logits by the parameters of the slot that the row belongs to.

    `constrains`: whether a slot has a constraint.
    """

    def __init__(
        self, vocab_size: int, eos_token_ids: tuple[int, ...], constrained: ConstrainedRows | None = None
    ) -> None:
        self._state = SamplingState(vocab_size, eos_token_ids)
        self._constrained = constrained or ConstrainedRows(vocab_size, Grammars())
        self.constrains = False

    def fill(self, init: SlotInit) -> None:
        """A sequence takes a slot."""
        self._state.fill(init)
        self._constrained.fill(init)
        self.constrains = self._constrained.active

    def free(self, slot: int) -> None:
        """A slot is empty again."""
        self._state.free(slot)
        self._constrained.free(slot)
        self.constrains = self._constrained.active

    def begin(self, slots: Sequence[int]) -> None:
        """Compute the masks of the slots that a step will sample while the step is computed; no-op without masks."""
        self._constrained.begin(slots)

    def break_off(self) -> None:
        """Nothing comes of the step that was begun; before the next one the slots are freed of whoever was in it."""
        self._constrained.break_off()

    def prompt_reports(
        self, decoder: Decoder, sequences: Iterable[ScheduledSequence], hidden: Tensor
    ) -> list[PromptReport]:
        """The reports of sequences with prompt targets, whose rows are the hidden states `[T, hidden]`, in order."""
        reports, first = [], 0
        step = max(1, PROMPT_LOGITS // decoder.outline.facts.vocab_size)
        for sequence in sequences:
            slot, targets = sequence.slot, sequence.prompt_targets
            count = self._state.prompt_logprob_count(slot) if targets else 0
            for start in range(0, len(targets), step):
                part = targets[start : start + step]
                logits = decoder.logits(hidden[first + start : first + start + len(part)])
                tokens = to_device(np.array(part, dtype=np.int64), hidden.device)
                reports.append(PromptReport(slot, part, count, reports_of(logits, tokens, [count] * len(part))))
            first += len(sequence.token_ids)
        return reports

    def sample(self, logits: Tensor, slots: Sequence[int]) -> list[SequenceOutput]:
        """Choose a token for each row (logits float32 [R, V], which may be changed) and record it.

        A row with a NaN or an infinite maximum gets an error instead of a token; the others are not affected.
        """
        choice, best, chosen = self._choose(logits, slots)
        return self.tell(choice, _on_host(best, chosen), choice.reports)

    def choose(self, logits: Tensor, slots: Sequence[int]) -> tuple[SampledRows, Tensor]:
        """The same, without looking at what was chosen, int64 [R] on the logits' device: `tell` is to be called with it
        before the next choice.
        """
        choice, best, chosen = self._choose(logits, slots)
        return choice, tokens_of(best, chosen)

    def plain(self, slots: Sequence[int], device: torch.device) -> tuple[SampledRows, PlainRows] | None:
        """A choice that somebody else makes, of rows that ask for nothing but their parameters; None where some do."""
        if self.constrains:
            return None
        rows = self._state.rows(tuple(slots), device)
        found = self._state.plain(rows)
        return None if found is None else (SampledRows(slots, rows, None, constrained=False), found)

    def chose(self, choice: SampledRows) -> None:
        """Somebody else is making that choice: what its rows draw next are other numbers."""
        if choice.rows.counted:
            self._state.count(choice.rows)

    def _choose(self, logits: Tensor, slots: Sequence[int]) -> tuple[SampledRows, Tensor, Tensor]:
        """The choice, and of each row the largest logit and the token that was chosen."""
        state = self._state
        rows = state.rows(tuple(slots), logits.device)
        masks = self._constrained.finish(logits.device) if self.constrains else None
        raw = logits
        if rows.reported is not None and (rows.adjusted or masks is not None):
            raw = logits.clone()
        if rows.adjusted:
            adjust(logits, rows.adjusted, state.num_outputs(rows))
        best, chosen = sample(logits, rows.params, state.uniforms(rows, logits.device), masks)
        if rows.counted:
            state.count(rows)
        reports = None if rows.reported is None else _reports(raw, chosen, rows.reported, rows.alternatives)
        return SampledRows(slots, rows, reports, self.constrains), best, chosen

    def tell(self, choice: SampledRows, tokens: Sequence[int], reports: Reports | None) -> list[SequenceOutput]:
        """Record what a step has chosen, NO_TOKEN where a row's logits are not finite, and what there is to tell of it.
        `reports` are the choice's, on the host.
        """
        slots, rows = choice.slots, choice.rows
        if rows.adjusted:
            self._state.record(rows, tokens)
        if reports is None and not choice.constrained and NO_TOKEN not in tokens:
            return [SequenceOutput(token) for token in tokens]
        of_rows = dict[int, LogprobEntry]()
        if reports is not None:
            of_rows = dict(
                zip(
                    rows.reporting,
                    token_logprobs([tokens[row] for row in rows.reporting], reports, rows.alternatives),
                    strict=True,
                )
            )
        failed, forced = Recorded({}, {})
        if choice.constrained:
            failed, forced = self._constrained.record(slots, tokens)
        failed |= {row: NOT_FINITE for row, token in enumerate(tokens) if token == NO_TOKEN}
        for row, more in forced.items():
            self._state.record_forced(slots[row], more)
        return [
            SequenceOutput(error=failed[row])
            if row in failed
            else SequenceOutput(token, of_rows.get(row), forced=forced.get(row, ()))
            for row, token in enumerate(tokens)
        ]


@dataclass(frozen=True, slots=True)
class SampledRows:
    """What is to be told of the choice of a step's rows.

    - `reports`: of the rows that want log probabilities, on the logits' device; None where none does.
    - `constrained`: whether a slot has a constraint.
    """

    slots: Sequence[int]
    rows: Rows
    reports: Reports | None
    constrained: bool


def tokens_of(best: Tensor, chosen: Tensor) -> Tensor:
    """int64 [R], NO_TOKEN where a row's largest logit is not finite."""
    return chosen.masked_fill(best.isfinite().logical_not_(), NO_TOKEN)


def _on_host(best: Tensor, chosen: Tensor) -> list[int]:
    """The chosen tokens, or NO_TOKEN where a row's largest logit is not finite."""
    # Each call into torch or numpy is a part of a small step that can be seen; a sum of float32s is finite if all are.
    tokens: list[int] = chosen.tolist()
    largest: list[float] = best.tolist()
    if math.isfinite(sum(largest)):
        return tokens
    return [token if math.isfinite(value) else NO_TOKEN for token, value in zip(tokens, largest, strict=True)]


def _reports(raw: Tensor, tokens: Tensor, rows: Tensor, alternatives: Sequence[int]) -> Reports:
    """Of the rows that asked for them."""
    everyone = len(alternatives) == raw.shape[0]
    return reports_of(raw, tokens, alternatives) if everyone else reports_of(raw[rows], tokens[rows], alternatives)


class PromptReport(NamedTuple):
    """Of some tokens of a slot's prompt, with so many `alternatives` each: what was found, on the logits' device."""

    slot: int
    tokens: Sequence[int]
    alternatives: int
    found: Reports


def prompt_logprobs_by_slot(reports: Sequence[PromptReport], found: Iterable[Reports]) -> dict[int, list[LogprobEntry]]:
    """What there is to tell of each slot; `found` is the same as in the reports, in their order, on the host."""
    by_slot: dict[int, list[LogprobEntry]] = {}
    for report, there in zip(reports, found, strict=True):
        tokens = token_logprobs(report.tokens, there, [report.alternatives] * len(report.tokens))
        by_slot.setdefault(report.slot, []).extend(tokens)
    return by_slot
