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

GATHERED_BYTES = 4 * 2**20
"""Bytes of whole rows of logits that ranks with parts of them add up at once."""


def reports_of(logits: Tensor, tokens: Tensor, top: Sequence[int]) -> Reports:
    """Return each row's log probability and rank of its token, and the `top[i]` most likely tokens.

    The result stays on the logits' device and the host does not wait for it. logits float32 [R, V], tokens int64 [R].
    Ranks count from 1; equal logits share the better rank. `top[i]` is limited to the size of the vocabulary.
    """
    wanted = [min(count, logits.shape[-1]) for count in top]
    alternatives = to_device(np.array(wanted, dtype=np.int32), logits.device)
    return log_probabilities(logits, tokens, alternatives, max(wanted, default=0))


def token_logprobs(tokens: Sequence[int], found: Reports, top: Sequence[int]) -> list[LogprobEntry]:
    """Return the log probabilities of tokens, each with `top[i]` alternatives."""
    chosen = zip(tokens, found.chosen.tolist(), found.ranks.tolist(), strict=True)
    if not any(top):
        return [LogprobEntry(token, logprob, rank) for token, logprob, rank in chosen]
    alternative = zip(found.top_tokens.tolist(), found.top.tolist(), top, strict=True)
    return [
        LogprobEntry(token, logprob, rank, list(zip(ids[:count], values[:count], strict=True)))
        for (token, logprob, rank), (ids, values, count) in zip(chosen, alternative, strict=True)
    ]


class PromptPart(NamedTuple):
    """Prompt targets of a slot whose logits are computed at once; their rows of hidden states begin at `first`."""

    slot: int
    first: int
    targets: Sequence[int]

    @property
    def end(self) -> int:
        return self.first + len(self.targets)


def prompt_parts(sequences: Iterable[ScheduledSequence], vocab_size: int) -> list[PromptPart]:
    """Return the prompt targets of a step's sequences in parts of at most PROMPT_LOGITS logits."""
    parts, first = [], 0
    step = max(1, PROMPT_LOGITS // vocab_size)
    for sequence in sequences:
        targets = sequence.prompt_targets
        for start in range(0, len(targets), step):
            parts.append(PromptPart(sequence.slot, first + start, targets[start : start + step]))
        first += len(sequence.token_ids)
    return parts


NOT_FINITE = "the model's logits are not finite (NaN or infinity); check its weights, or choose another --dtype"


class Sampler:
    """Samples one token for each row of logits by the parameters of the row's slot.

    `constrains`: whether a slot has a constraint.
    """

    def __init__(
        self, vocab_size: int, eos_token_ids: tuple[int, ...], constrained: ConstrainedRows | None = None
    ) -> None:
        self._state = SamplingState(vocab_size, eos_token_ids)
        self._constrained = constrained or ConstrainedRows(vocab_size, Grammars())
        self.constrains = False

    def fill(self, init: SlotInit) -> None:
        """Store the parameters of a sequence that takes a slot."""
        self._state.fill(init)
        self._constrained.fill(init)
        self.constrains = self._constrained.active

    def free(self, slot: int) -> None:
        """Forget the parameters and the guide of a slot, whose sequence has left it."""
        self._state.free(slot)
        self._constrained.free(slot)
        self.constrains = self._constrained.active

    def begin(self, slots: Sequence[int]) -> None:
        """Start to compute the masks of the slots that a step will sample, during its forward pass; no-op without
        masks.
        """
        self._constrained.begin(slots)

    def break_off(self) -> None:
        """Discard the running step, which has failed. Its slots are freed before the next one."""
        self._constrained.break_off()

    def prompt_reports(
        self, decoder: Decoder, sequences: Iterable[ScheduledSequence], hidden: Tensor
    ) -> list[PromptReport]:
        """Return the log probabilities of the prompt targets of these sequences, whose rows are the hidden states `[T,
        hidden]`, in order.
        """
        parts = prompt_parts(sequences, decoder.outline.facts.vocab_size)
        return [self.prompt_report(part, decoder.logits(hidden[part.first : part.end])) for part in parts]

    def prompt_report(self, part: PromptPart, logits: Tensor) -> PromptReport:
        """Return the log probabilities of a part's targets from their rows' logits."""
        count = self._state.prompt_logprob_count(part.slot)
        tokens = to_device(np.array(part.targets, dtype=np.int64), logits.device)
        found = reports_of(logits, tokens, [count] * len(part.targets))
        return PromptReport(part.slot, part.targets, count, found)

    def sample(self, logits: Tensor, slots: Sequence[int]) -> list[SequenceOutput]:
        """Sample a token for each row (logits float32 [R, V], which may be changed) and record it.

        A row with a NaN or an infinite maximum gets an error instead of a token; the others are not affected.
        """
        choice, best, chosen = self._choose(logits, slots)
        return self.tell(choice, _on_host(best, chosen), choice.reports)

    def choose(self, logits: Tensor, slots: Sequence[int]) -> tuple[SampledRows, Tensor]:
        """Sample tokens without reading them: return the sampled rows, and the tokens, int64 [R] on the logits' device.

        Call `tell` with the result before the next call.
        """
        choice, best, chosen = self._choose(logits, slots)
        return choice, tokens_of(best, chosen)

    def plain(self, slots: Sequence[int], device: torch.device) -> tuple[SampledRows, PlainRows] | None:
        """Return rows that a caller samples by their parameters alone; None if some rows need more."""
        if self.constrains:
            return None
        rows = self._state.rows(tuple(slots), device)
        found = self._state.plain(rows)
        return None if found is None else (SampledRows(slots, rows, None, constrained=False), found)

    def chose(self, choice: SampledRows) -> None:
        """Record that the caller samples these rows, so that their next tokens use new random numbers."""
        if choice.rows.counted:
            self._state.count(choice.rows)

    def _choose(self, logits: Tensor, slots: Sequence[int]) -> tuple[SampledRows, Tensor, Tensor]:
        """Sample a token for each row. Return the sampled rows, and for each row the largest logit and the sampled
        token.
        """
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
        """Record sampled tokens (NO_TOKEN if a row's logits are not finite) and return the outputs.

        `reports`: `choice.reports`, on the host.
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
    """The rows of a step that are sampled.

    - `reports`: of the rows with log probabilities, on the logits' device; None if there are none.
    - `constrained`: whether a slot has a constraint.
    """

    slots: Sequence[int]
    rows: Rows
    reports: Reports | None
    constrained: bool


def tokens_of(best: Tensor, chosen: Tensor) -> Tensor:
    """Return the sampled tokens, int64 [R], NO_TOKEN if a row's largest logit is not finite."""
    return chosen.masked_fill(best.isfinite().logical_not_(), NO_TOKEN)


def _on_host(best: Tensor, chosen: Tensor) -> list[int]:
    """Return the sampled tokens on the host, NO_TOKEN if a row's largest logit is not finite."""
    # Each call into torch or numpy takes a measurable part of a small step; a sum of float32s is finite if all are.
    tokens: list[int] = chosen.tolist()
    largest: list[float] = best.tolist()
    if math.isfinite(sum(largest)):
        return tokens
    return [token if math.isfinite(value) else NO_TOKEN for token, value in zip(tokens, largest, strict=True)]


def _reports(raw: Tensor, tokens: Tensor, rows: Tensor, alternatives: Sequence[int]) -> Reports:
    """Return the reports of the rows with log probabilities."""
    everyone = len(alternatives) == raw.shape[0]
    return reports_of(raw, tokens, alternatives) if everyone else reports_of(raw[rows], tokens[rows], alternatives)


class PromptReport(NamedTuple):
    """Log probabilities `found` of some tokens of a slot's prompt, each with `alternatives` alternatives, on the
    logits' device.
    """

    slot: int
    tokens: Sequence[int]
    alternatives: int
    found: Reports


def prompt_logprobs_by_slot(reports: Sequence[PromptReport], found: Iterable[Reports]) -> dict[int, list[LogprobEntry]]:
    """Return the prompt log probabilities of each slot; `found` are the reports' own, in order, on the host."""
    by_slot: dict[int, list[LogprobEntry]] = {}
    for report, there in zip(reports, found, strict=True):
        tokens = token_logprobs(report.tokens, there, [report.alternatives] * len(report.tokens))
        by_slot.setdefault(report.slot, []).extend(tokens)
    return by_slot
