"""The runner of a CPU: a step is complete when its call returns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from plimsoll_runtime.engine.protocol.plan import ScheduledSequence, SequenceOutput, StepPlan, StepResult
from plimsoll_runtime.engine.step_timing import StepPhase
from plimsoll_runtime.execution.forward import ForwardPass
from plimsoll_runtime.execution.inputs.batch_state import BatchState, step_inputs
from plimsoll_runtime.execution.runners.base import StepRunner, merged_outputs
from plimsoll_runtime.execution.sampling.sampler import Sampler, prompt_logprobs_by_slot


class CpuRunner(StepRunner):
    """Computes a step, then samples its tokens."""

    def __init__(self, forward_pass: ForwardPass, sampler: Sampler, num_slots: int) -> None:
        cache = forward_pass.parts.cache
        self._state = BatchState(num_slots, len(cache.groups), cache.num_blocks)
        self._sampler = sampler
        super().__init__(forward_pass, self._state, sampler)

    def _compute(self, plan: StepPlan) -> StepResult:
        sequences = plan.sequences
        slots = [s.slot for s in sequences if s.sample]
        self._sampler.begin(slots)
        inputs = step_inputs(plan, self._state, self._parts.cache.block_size)
        hidden = self._forward(plan, self._forward_pass.run, inputs)
        outputs = self._sample(slots, sequences, hidden) if slots else []
        if len(outputs) < len(sequences) or [s for s in sequences if s.prompt_targets]:
            reports = self._sampler.prompt_reports(self._parts.decoder, sequences, hidden)
            prompts = prompt_logprobs_by_slot(reports, [report.found for report in reports])
            outputs = merged_outputs(sequences, dict(zip(slots, outputs, strict=True)), prompts)
        return StepResult(outputs, self._forward_pass.fallbacks)

    def _sample(
        self, slots: Sequence[int], sequences: Sequence[ScheduledSequence], hidden: Tensor
    ) -> list[SequenceOutput]:
        """Sample from the last row of each sequence that needs a token."""
        if len(slots) < len(hidden):
            ends = accumulate(len(s.token_ids) for s in sequences)
            hidden = hidden[torch.tensor([end - 1 for s, end in zip(sequences, ends, strict=True) if s.sample])]
        logits = self._parts.decoder.logits(hidden)
        self._parts.timeline.lap(StepPhase.HEAD)
        outputs = self._sampler.sample(logits, slots)
        self._state.record(slots, outputs)
        return outputs
