"""The runner: computes a step's plan and chooses the tokens. It knows slots and blocks, never requests."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import torch
from torch import Tensor

from plimsoll_kernels.log_probabilities.reports import Reports
from plimsoll_runtime.engine.plan import (
    Launched,
    ScheduledSequence,
    SequenceOutput,
    StepPlan,
    StepResult,
    TokenLogprob,
)
from plimsoll_runtime.engine.timeline import StepPhase, Timeline
from plimsoll_runtime.execution.batch_state import BatchState
from plimsoll_runtime.execution.device.shortage import Shortages
from plimsoll_runtime.execution.events import Event, device_event
from plimsoll_runtime.execution.forward import ForwardPass
from plimsoll_runtime.execution.inputs import step_inputs
from plimsoll_runtime.execution.kv_cache import KvCache
from plimsoll_runtime.execution.late import LateStep
from plimsoll_runtime.execution.moves import BlockMoves
from plimsoll_runtime.execution.sampling.logprobs import token_logprobs
from plimsoll_runtime.execution.sampling.sampler import Choice, Sampler
from plimsoll_runtime.execution.sent import sent
from plimsoll_runtime.execution.tiers.host import HostBlocks
from plimsoll_runtime.models.decoder import Decoder

PROMPT_LOGITS = 2**25
"""Most logits (rows x vocabulary) held at once for prompt log probabilities: 128 MiB of float32."""


class ModelRunner:
    """Runs one decoder on one device over one paged cache."""

    def __init__(
        self,
        decoder: Decoder,
        forward_pass: ForwardPass,
        cache: KvCache,
        sampler: Sampler,
        num_slots: int,
        timeline: Timeline | None = None,
        host: HostBlocks | None = None,
        copied: Event | None = None,
    ) -> None:
        """`copied`: the event behind which a step's tokens are on the host; None: as the cache's device has it."""
        self._copied = copied or device_event(cache.device)
        self._late: LateStep | None = None
        self._decoder = decoder
        self._forward_pass = forward_pass
        self._cache = cache
        self._sampler = sampler
        self._state = BatchState(
            num_slots, len(cache.groups), cache.num_blocks, None if self._copied is None else cache.device
        )
        self._timeline = timeline
        self._moves = BlockMoves(cache, host)
        self._shortages = Shortages()

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> Launched:
        """Compute one step; the outputs stand in the order of the plan's sequences.

        A GPU is only told what to compute: its tokens stay there for the next step, and the host sees them when it has
        told the GPU most of that one too, or when somebody asks.

        Raises StepMemoryError where the device has too little memory for what the plan computes. What torch keeps of
        it for later is given back then.
        """
        if self._late is not None and self._sampler.constrains:
            self._settle(self._late)
        self._state.begin(plan)
        for slot in plan.freed_slots:
            self._sampler.free(slot)
        if plan.freed_slots:
            self._forward_pass.free(plan.freed_slots)
        for init in plan.new_slots:
            self._sampler.fill(init)
        self._moves.begin(plan)
        return self._shortages.watch(plan, self._compute, self._sampler.break_off)

    def _compute(self, plan: StepPlan) -> Launched:
        if self._sampler.constrains:
            self._sampler.begin([s.slot for s in plan.sequences if s.sample])
        if not plan.sequences:
            return StepResult((), self._forward_pass.fallbacks)
        hidden, last_rows = self._forward(plan)
        if self._late is not None:
            self._settle(self._late)
        sampled = self._sample(plan.sequences, hidden, last_rows)
        reports = self._prompt_reports(plan.sequences, hidden, last_rows)
        if isinstance(sampled, dict):
            result: Launched = StepResult(_merged(plan.sequences, sampled, reports), self._forward_pass.fallbacks)
        else:
            result = self._late = self._copied_later(plan.sequences, sampled, reports)
        self._lap(StepPhase.SAMPLE)
        return result

    def _forward(self, plan: StepPlan) -> tuple[Tensor, list[int]]:
        """Hidden states [T, H] of all rows, and the index of each sequence's last row."""
        inputs = step_inputs(plan, self._state, self._cache.block_size, self._cache.device)
        hidden = self._forward_pass.step(plan, inputs)
        self._lap(StepPhase.FORWARD)
        last_rows, row = [], -1
        for length in inputs.batch.query_lens:
            row += length
            last_rows.append(row)
        return hidden, last_rows

    def _sample(
        self, sequences: Sequence[ScheduledSequence], hidden: Tensor, last_rows: Sequence[int]
    ) -> dict[int, SequenceOutput] | Choice:
        """The output of each sequence that samples, by slot; what was chosen, where that is only on the device."""
        chosen = [(s.slot, row) for s, row in zip(sequences, last_rows, strict=True) if s.sample]
        if not chosen:
            return {}
        slots, rows = [slot for slot, _ in chosen], [row for _, row in chosen]
        picked = hidden if len(rows) == hidden.shape[0] else hidden[sent(np.array(rows), hidden.device)]
        logits = self._decoder.logits(picked)
        self._lap(StepPhase.HEAD)
        if self._copied is not None:
            return self._sampler.choose(logits, slots)
        outputs = self._sampler.sample(logits, slots)
        self._state.chose(slots, outputs)
        return dict(zip(slots, outputs, strict=True))

    def _copied_later(
        self, sequences: Sequence[ScheduledSequence], choice: Choice, reports: dict[int, list[TokenLogprob]]
    ) -> LateStep:
        """What will come of a step once the device has chosen; the next one has the tokens there."""
        assert self._copied is not None
        tokens, fallbacks = choice.tokens(), self._forward_pass.fallbacks
        self._state.chose_unseen(choice.slots, tokens.clamp(min=0))

        def finish(values: Sequence[Tensor]) -> StepResult:
            tokens, told = values[0].tolist(), Reports(*values[1:]) if choice.reports is not None else None
            outputs = dict(zip(choice.slots, self._sampler.tell(choice, tokens, told), strict=True))
            return StepResult(_merged(sequences, outputs, reports), fallbacks)

        found = choice.reports
        more = () if found is None else (found.chosen, found.ranks, found.top_tokens, found.top)
        return LateStep([tokens, *more], self._copied, finish)

    def _settle(self, late: LateStep) -> None:
        """See what the step before has chosen, which the choice of the next one may depend on."""
        late.result()
        self._late = None
        self._lap(StepPhase.SAMPLE)

    def _prompt_reports(
        self, sequences: Sequence[ScheduledSequence], hidden: Tensor, last_rows: Sequence[int]
    ) -> dict[int, list[TokenLogprob]]:
        """Log probabilities of prompt tokens, by slot, in pieces that bound the memory for logits."""
        reports: dict[int, list[TokenLogprob]] = {}
        for sequence, last in zip(sequences, last_rows, strict=True):
            targets = sequence.prompt_targets
            if not targets:
                continue
            first = last + 1 - len(sequence.token_ids)
            count = self._sampler.prompt_logprob_count(sequence.slot)
            step = max(1, PROMPT_LOGITS // self._decoder.outline.facts.vocab_size)
            report = reports.setdefault(sequence.slot, [])
            for start in range(0, len(targets), step):
                part = torch.tensor(targets[start : start + step], device=hidden.device)
                logits = self._decoder.logits(hidden[first + start : first + start + len(part)])
                report.extend(token_logprobs(logits, part, [count] * len(part)))
        return reports

    def _lap(self, phase: StepPhase) -> None:
        if self._timeline is not None:
            self._timeline.lap(phase)


_NOTHING = SequenceOutput()


def _merged(
    sequences: Sequence[ScheduledSequence],
    sampled: dict[int, SequenceOutput],
    reports: dict[int, list[TokenLogprob]],
) -> list[SequenceOutput]:
    """What came of each sequence, from what slots have sampled and what is told of their prompts."""
    outputs = [sampled.get(s.slot, _NOTHING) for s in sequences]
    if not reports:
        return outputs
    scores = [reports.get(s.slot, ()) for s in sequences]
    return [
        msgspec.structs.replace(output, prompt_logprobs=own) if own else output
        for output, own in zip(outputs, scores, strict=True)
    ]
