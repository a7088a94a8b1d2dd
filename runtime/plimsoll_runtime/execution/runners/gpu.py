"""The runner of a GPU: it launches a step while the device still computes the one before.

Sampled tokens stay on the device, where the next step reads them. The host waits for them after it has launched that
step, or earlier if its sampling depends on them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from plimsoll_kernels.log_probabilities.reports import Reports
from plimsoll_runtime.engine.protocol.plan import Launched, ScheduledSequence, SequenceOutput, StepPlan, StepResult
from plimsoll_runtime.engine.step_timing import StepPhase
from plimsoll_runtime.execution.forward import GraphForwardPass
from plimsoll_runtime.execution.graphs.sampling import SamplingGraphs
from plimsoll_runtime.execution.inputs.device_state import DeviceState
from plimsoll_runtime.execution.inputs.step_rows import StepRows
from plimsoll_runtime.execution.runners.base import StepRunner, merged_outputs
from plimsoll_runtime.execution.sampling.sampler import PromptReport, SampledRows, Sampler, prompt_logprobs_by_slot
from plimsoll_runtime.models.layers.device_copy import to_device


class Event(Protocol):
    """A point in the launched work, as `torch.cuda.Event`."""

    def record(self) -> None:
        """Set the point after all work launched so far."""

    def synchronize(self) -> None:
        """Wait until the device has reached the point. Returns immediately if none was set."""


class AsyncResult:
    """A `Launched` step. Its values are on the host once the device has reached `copied`."""

    def __init__(
        self, values: Sequence[Tensor], copied: Event, finish: Callable[[Sequence[Tensor]], StepResult]
    ) -> None:
        """`finish` computes the result from the values when they are on the host."""
        self._values = [_on_host(value) for value in values]
        copied.record()
        self._copied = copied
        self._finish = finish
        self._result: StepResult | None = None

    @property
    def ready(self) -> bool:
        return self._result is not None

    def result(self) -> StepResult:
        if self._result is None:
            self._copied.synchronize()
            self._result = self._finish(self._values)
        return self._result


def _on_host(value: Tensor) -> Tensor:
    """Start a copy to host memory and return it. Its contents are valid once the device has reached the copy."""
    host = torch.empty(value.shape, dtype=value.dtype, pin_memory=value.is_cuda)
    return host.copy_(value, non_blocking=True)


Sampled = tuple[SampledRows, Tensor]
"""The rows of a step that sample, and their tokens, int64 [R] on the device."""


class GpuRunner(StepRunner):
    """Launches a step and the sampling of its tokens, then reads the tokens of the step before."""

    def __init__(
        self, forward_pass: GraphForwardPass, sampler: Sampler, state: DeviceState, event: Event, graphs: SamplingGraphs
    ) -> None:
        """`event`: set after the copies of a step's results to the host."""
        super().__init__(forward_pass, state, sampler)
        self._forward_pass: GraphForwardPass = forward_pass
        self._sampler = sampler
        self._state = state
        self._event = event
        self._graphs = graphs
        self._pending: AsyncResult | None = None

    def run(self, plan: StepPlan) -> Launched:
        """Launch a step. The result is an AsyncResult if a token or a log probability is still to be computed."""
        if self._sampler.constrains:
            self._settle()
        return super().run(plan)

    def _compute(self, plan: StepPlan) -> Launched:
        sequences = plan.sequences
        slots = [s.slot for s in sequences if s.sample]
        self._sampler.begin(slots)
        # The step sends everything in one copy, except sampling features that need more than a row's parameters.
        self._state.upload_buffer.start_step()
        rows = StepRows.of(plan, self._state, self._parts.cache.block_size)
        picked = None if len(slots) == rows.known.size else rows.last_rows[[s.sample for s in sequences]]
        posted = self._graphs.post(slots, picked)
        hidden = self._forward(plan, self._forward_pass.run_rows, rows)
        reports: list[PromptReport] = []
        if [s for s in sequences if s.prompt_targets]:
            reports = self._sampler.prompt_reports(self._parts.decoder, sequences, hidden)
        sampled: Sampled | None = None
        if posted is not None:
            sampled = posted.choice, self._graphs.run(posted, hidden)
            self._parts.timeline.lap(StepPhase.HEAD)
            self._settle()
        else:
            self._settle()
            if slots:
                sampled = self._sample(slots, hidden if picked is None else hidden[to_device(picked, hidden.device)])
        return self._result(sequences, sampled, reports)

    def _sample(self, slots: Sequence[int], hidden: Tensor) -> Sampled:
        """Launch the sampling of rows `[R, hidden]` kernel by kernel."""
        logits = self._parts.decoder.logits(hidden)
        self._parts.timeline.lap(StepPhase.HEAD)
        choice, tokens = self._sampler.choose(logits, slots)
        self._state.record(to_device(np.array(slots), logits.device), tokens)
        return choice, tokens

    def _result(
        self, sequences: Sequence[ScheduledSequence], sampled: Sampled | None, reports: Sequence[PromptReport]
    ) -> Launched:
        """Return the step's result. Starts copies of values still being computed to the host, and sets the event after
        them.
        """
        fallbacks = self._forward_pass.fallbacks
        if sampled is None and not reports:
            return StepResult(merged_outputs(sequences, {}, {}), fallbacks)
        choice, values = None, list[Tensor]()
        if sampled is not None:
            choice, tokens = sampled
            values = [tokens, *(choice.reports or ())]
        of_tokens = len(values)
        for report in reports:
            values += report.found

        def finish(copies: Sequence[Tensor]) -> StepResult:
            outputs = dict[int, SequenceOutput]()
            if choice is not None:
                logprobs = Reports(*copies[1:of_tokens]) if choice.reports else None
                found = self._sampler.tell(choice, copies[0].tolist(), logprobs)
                if len(found) == len(sequences) and not reports:
                    return StepResult(found, fallbacks)
                outputs = dict(zip(choice.slots, found, strict=True))
            prompts = (Reports(*copies[at : at + 4]) for at in range(of_tokens, len(copies), 4))
            return StepResult(merged_outputs(sequences, outputs, prompt_logprobs_by_slot(reports, prompts)), fallbacks)

        self._pending = AsyncResult(values, self._event, finish)
        return self._pending

    def _settle(self) -> None:
        """Wait for the tokens of the step before, because the sampling of this one may depend on them."""
        if self._pending is not None:
            self._pending.result()
            self._pending = None
            self._parts.timeline.lap(StepPhase.SAMPLE)
