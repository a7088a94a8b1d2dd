"""The runner of a rank that has a part of the output layer: it computes its logits and joins the choice of tokens."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from plimsoll_runtime.engine.protocol.messages import LogprobEntry
from plimsoll_runtime.engine.protocol.plan import Launched, ScheduledSequence, SequenceOutput, StepPlan, StepResult
from plimsoll_runtime.engine.step_timing import StepPhase
from plimsoll_runtime.execution.forward import ForwardPass, GraphForwardPass
from plimsoll_runtime.execution.inputs.batch_state import BatchState, SlotTables, step_inputs
from plimsoll_runtime.execution.inputs.device_state import DeviceState
from plimsoll_runtime.execution.inputs.step_rows import StepRows as DeviceRows
from plimsoll_runtime.execution.runners.base import StepRunner, merged_outputs
from plimsoll_runtime.execution.sampling.sampler import (
    NOT_FINITE,
    PromptPart,
    Sampler,
    prompt_logprobs_by_slot,
    prompt_parts,
)
from plimsoll_runtime.execution.sampling.state import NO_TOKEN, draw_of
from plimsoll_runtime.parallel.choice import Choice
from plimsoll_runtime.parallel.choice_rows import DrawnSlots, StepRows
from plimsoll_runtime.parallel.member import NoParams


class ChoosingSteps(StepRunner):
    """Computes a step and chooses its tokens together with other ranks. Only the outputs of the first one have tokens.

    It waits for each step, also on a GPU. Subclasses compute the hidden states.
    """

    def __init__(self, forward_pass: ForwardPass, state: SlotTables, sampler: Sampler | None, choice: Choice) -> None:
        """`sampler`: of the first rank."""
        self._sampler = sampler
        self._choice = choice
        self._drawn = DrawnSlots(choice.parts)
        super().__init__(forward_pass, state, sampler or NoParams())

    @abstractmethod
    def _hidden(self, plan: StepPlan) -> Tensor:
        """Return the hidden states of all rows of a plan."""

    def run(self, plan: StepPlan) -> Launched:
        for draw in plan.draws or map(draw_of, plan.new_slots):
            self._drawn.fill(draw)
        return super().run(plan)

    def _compute(self, plan: StepPlan) -> StepResult:
        sequences = plan.sequences
        rows = self._drawn.rows(tuple(s.slot for s in sequences if s.sample))
        prompts = prompt_parts(sequences, self._choice.vocab)
        special = [rows.slots[row] for row in rows.special.tolist()]
        # First of all, so that this rank can join the choice of the others if it fails.
        self._choice.begin(rows.rows, len(special), len(prompts))
        if self._sampler is not None and special:
            self._sampler.begin(special)
        hidden = self._hidden(plan)
        sampled = self._sample(rows, special, sequences, hidden) if rows.slots else []
        found = self._prompt_logprobs(prompts, hidden) if prompts else {}
        if self._sampler is None:
            return StepResult([SequenceOutput()] * len(sequences), self._forward_pass.fallbacks)
        outputs = merged_outputs(sequences, dict(zip(rows.slots, sampled, strict=True)), found)
        return StepResult(outputs, self._forward_pass.fallbacks)

    def _sample(
        self, rows: StepRows, special: Sequence[int], sequences: Sequence[ScheduledSequence], hidden: Tensor
    ) -> list[SequenceOutput]:
        """Choose a token for the last row of each sequence that needs one. Other ranks than the first return nothing of
        use.
        """
        if len(rows.slots) < len(hidden):
            ends = accumulate(len(s.token_ids) for s in sequences)
            hidden = hidden[torch.tensor([end - 1 for s, end in zip(sequences, ends, strict=True) if s.sample])]
        logits = self._parts.decoder.logits(hidden)
        self._parts.timeline.lap(StepPhase.HEAD)
        uniforms = self._drawn.uniforms(rows)
        self._drawn.count(rows)
        tokens, left = self._choice.choose(logits if not special else logits[rows.shared], uniforms)
        outputs = [SequenceOutput()] * len(rows.slots)
        if special or left.size:
            wanted = [*rows.special.tolist(), *rows.shared[left].tolist()]
            whole = self._choice.gather(logits, wanted)
            if self._sampler is not None:
                assert whole is not None
                found = self._sampler.sample(whole[: len(special)], special) if special else []
                for row, output in zip(rows.special.tolist(), found, strict=True):
                    outputs[row] = output
                if left.size:
                    tokens[left] = self._choice.sampled(whole[len(special) :], left, uniforms)
        for row, token in zip(rows.shared.tolist(), tokens.tolist(), strict=True):
            outputs[row] = SequenceOutput(error=NOT_FINITE) if token == NO_TOKEN else SequenceOutput(token)
        return outputs

    def _prompt_logprobs(self, parts: Sequence[PromptPart], hidden: Tensor) -> dict[int, list[LogprobEntry]]:
        """Return the log probabilities of prompts by slot; other ranks than the first one return nothing."""
        reports = []
        for part in parts:
            logits = self._parts.decoder.logits(hidden[part.first : part.end])
            whole = self._choice.gather(logits, range(len(logits)), of_prompt=True)
            if self._sampler is not None:
                assert whole is not None
                reports.append(self._sampler.prompt_report(part, whole))
        return prompt_logprobs_by_slot(reports, [report.found for report in reports])


class ChoosingRunner(ChoosingSteps):
    """Launches the forward pass of a step kernel by kernel."""

    def __init__(self, forward_pass: ForwardPass, sampler: Sampler | None, choice: Choice, num_slots: int) -> None:
        cache = forward_pass.parts.cache
        self._state = BatchState(num_slots, len(cache.groups), cache.num_blocks)
        super().__init__(forward_pass, self._state, sampler, choice)

    def _hidden(self, plan: StepPlan) -> Tensor:
        cache = self._parts.cache
        inputs = step_inputs(plan, self._state, cache.block_size, cache.device)
        return self._forward(plan, self._forward_pass.run, inputs)


class GraphChoosingRunner(ChoosingSteps):
    """Replays the forward pass of a step as a graph if there is one, on a GPU."""

    def __init__(
        self, forward_pass: GraphForwardPass, sampler: Sampler | None, choice: Choice, state: DeviceState
    ) -> None:
        self._graph_pass = forward_pass
        self._state = state
        super().__init__(forward_pass, state, sampler, choice)

    def _hidden(self, plan: StepPlan) -> Tensor:
        self._state.upload_buffer.start_step()
        rows = DeviceRows.of(plan, self._state, self._parts.cache.block_size)
        return self._forward(plan, self._graph_pass.run_rows, rows)
