"""The runner: computes a step's plan and chooses the tokens. It knows slots and blocks, never requests."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import msgspec
import numpy as np
import torch
from torch import Tensor

from plimsoll_kernels.log_probabilities.reports import Reports
from plimsoll_runtime.engine.protocol.plan import (
    Launched,
    ScheduledSequence,
    SequenceOutput,
    StepPlan,
    StepResult,
    TokenLogprob,
)
from plimsoll_runtime.engine.step_timing import StepPhase, Timeline
from plimsoll_runtime.execution.async_result import AsyncResult, DeviceSteps, Event
from plimsoll_runtime.execution.forward import BlockCopies, ForwardPass, OutOfMemoryHandler
from plimsoll_runtime.execution.inputs.batch_state import BatchState, step_inputs
from plimsoll_runtime.execution.inputs.step_rows import StepRows
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.execution.kv.offload.host_memory import HostBlocks
from plimsoll_runtime.execution.sampling.sampler import (
    PromptReport,
    SampledRows,
    Sampler,
    prompt_logprobs_by_slot,
    reports_of,
)
from plimsoll_runtime.models.decoder import Decoder
from plimsoll_runtime.models.layers.device_copy import to_device

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
        device: DeviceSteps | None = None,
    ) -> None:
        """`device`: where the host sees tokens late; None where it computes by itself."""
        self._device = device
        self._late: AsyncResult | None = None
        self._decoder = decoder
        self._forward_pass = forward_pass
        self._cache = cache
        self._sampler = sampler
        self._state = BatchState(
            num_slots, len(cache.groups), cache.num_blocks, None if device is None else device.state
        )
        self._timeline = timeline
        self._moves = BlockCopies(cache, host)
        self._shortages = OutOfMemoryHandler()

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> Launched:
        """Compute one step; the outputs stand in the order of the plan's sequences.

        A GPU is only told what to compute: its tokens stay there for the next step, and the host sees them when it has
        told the GPU that one too, or when somebody asks.

        Raises StepMemoryError where the device has too little memory for what the plan computes. What torch keeps of
        it for later is given back then.
        """
        if self._sampler.constrains:
            self._settle()
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
        result = self._computed(plan) if self._device is None else self._launched(plan, self._device)
        self._lap(StepPhase.SAMPLE)
        return result

    def _computed(self, plan: StepPlan) -> StepResult:
        """What comes of a step that the host waits for."""
        inputs = step_inputs(plan, self._state, self._cache.block_size, self._cache.device)
        hidden = self._forward_pass.step(plan, inputs)
        self._lap(StepPhase.FORWARD)
        last_rows = [end - 1 for end in accumulate(inputs.batch.query_lens)]
        outputs = {}
        if chosen := [(s.slot, row) for s, row in zip(plan.sequences, last_rows, strict=True) if s.sample]:
            slots, rows = [slot for slot, _ in chosen], [row for _, row in chosen]
            logits = self._decoder.logits(
                hidden if len(rows) == len(hidden) else hidden[to_device(np.array(rows), hidden.device)]
            )
            self._lap(StepPhase.HEAD)
            found = self._sampler.sample(logits, slots)
            self._state.chose(slots, found)
            outputs = dict(zip(slots, found, strict=True))
        reports = self._prompt_reports(plan.sequences, hidden, last_rows)
        told = prompt_logprobs_by_slot(reports, [report.found for report in reports]) if reports else {}
        return StepResult(_merged(plan.sequences, outputs, told), self._forward_pass.fallbacks)

    def _launched(self, plan: StepPlan, device: DeviceSteps) -> Launched:
        """A step that the device has been told of. It is sent all that this takes in one copy, but for what rows ask of
        the choice beside their parameters.
        """
        state, choices = device.state, device.choices
        state.outbox.begin()
        rows = StepRows.of(plan, state, self._cache.block_size)
        sampled = [s.sample for s in plan.sequences]
        slots = [s.slot for s in plan.sequences if s.sample]
        picked = None if len(slots) == rows.known.size else rows.last_rows[sampled]
        posted = choices and choices.post(slots, picked)
        hidden = self._forward_pass.step(plan, rows)
        self._lap(StepPhase.FORWARD)
        reports: list[PromptReport] = []
        if any(s.prompt_targets for s in plan.sequences):
            reports = self._prompt_reports(plan.sequences, hidden, rows.last_rows.tolist())
        chosen: tuple[SampledRows, Tensor] | None = None
        if choices and posted:
            chosen = posted.choice, choices.run(posted, hidden)
            self._lap(StepPhase.HEAD)
            self._settle()
        else:
            self._settle()
            if slots:
                logits = self._decoder.logits(hidden if picked is None else hidden[to_device(picked, hidden.device)])
                self._lap(StepPhase.HEAD)
                chosen = self._sampler.choose(logits, slots)
                state.chose(to_device(np.array(slots), logits.device), chosen[1])
        if chosen is None and not reports:
            return StepResult(_merged(plan.sequences, {}, {}), self._forward_pass.fallbacks)
        self._late = self._copied_later(plan.sequences, chosen, reports, device.copied)
        return self._late

    def _copied_later(
        self,
        sequences: Sequence[ScheduledSequence],
        chosen: tuple[SampledRows, Tensor] | None,
        reports: Sequence[PromptReport],
        copied: Event,
    ) -> AsyncResult:
        """What will come of a step once the device has chosen: tokens, if there are some, and what is told of them and
        of prompts.
        """
        fallbacks = self._forward_pass.fallbacks
        choice, values = None if chosen is None else chosen[0], [] if chosen is None else [chosen[1]]
        if choice is not None and choice.reports is not None:
            values += choice.reports.parts
        beside = len(values)
        for report in reports:
            values += report.found.parts

        def finish(there: Sequence[Tensor]) -> StepResult:
            outputs: dict[int, SequenceOutput] = {}
            if choice is not None:
                told = None if choice.reports is None else Reports(*there[1:beside])
                found = self._sampler.tell(choice, there[0].tolist(), told)
                if len(found) == len(sequences) and not reports:
                    return StepResult(found, fallbacks)
                outputs = dict(zip(choice.slots, found, strict=True))
            of_prompts = (Reports(*there[at : at + 4]) for at in range(beside, len(there), 4))
            return StepResult(_merged(sequences, outputs, prompt_logprobs_by_slot(reports, of_prompts)), fallbacks)

        return AsyncResult(values, copied, finish)

    def _settle(self) -> None:
        """See what the step before has chosen, which the choice of the next one may depend on."""
        if self._late is not None:
            self._late.result()
            self._late = None
            self._lap(StepPhase.SAMPLE)

    def _prompt_reports(
        self, sequences: Sequence[ScheduledSequence], hidden: Tensor, last_rows: Sequence[int]
    ) -> list[PromptReport]:
        """Log probabilities of prompt tokens, in pieces that bound the memory for logits."""
        reports = []
        for sequence, last in zip(sequences, last_rows, strict=True):
            targets = sequence.prompt_targets
            if not targets:
                continue
            first = last + 1 - len(sequence.token_ids)
            count = self._sampler.prompt_logprob_count(sequence.slot)
            step = max(1, PROMPT_LOGITS // self._decoder.outline.facts.vocab_size)
            for start in range(0, len(targets), step):
                part = targets[start : start + step]
                logits = self._decoder.logits(hidden[first + start : first + start + len(part)])
                found = reports_of(
                    logits, to_device(np.array(part, dtype=np.int64), hidden.device), [count] * len(part)
                )
                reports.append(PromptReport(sequence.slot, part, count, found))
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
