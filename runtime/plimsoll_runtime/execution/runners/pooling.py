"""The runner of models that generate nothing: it computes a vector of each prompt that ends in a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from plimsoll_runtime.engine.protocol.plan import ScheduledSequence, SequenceOutput, SlotInit, StepPlan, StepResult
from plimsoll_runtime.engine.step_timing import StepPhase
from plimsoll_runtime.execution.forward import ForwardPass
from plimsoll_runtime.execution.inputs.batch_state import BatchState, StepInputs, step_inputs
from plimsoll_runtime.execution.runners.base import StepRunner
from plimsoll_runtime.models.spec.pooling import PoolingKind


class Pooler:
    """Keeps, by slot, the result of a prompt's earlier chunks: its first hidden state, or the sum of all so far;
    nothing if the last hidden state is the vector.
    """

    def __init__(self, kind: PoolingKind, hidden_size: int, num_slots: int, device: torch.device) -> None:
        self._kind = kind
        self._kept = None if kind == "last" else torch.zeros(num_slots, hidden_size, device=device)
        self._device = device

    def pool(self, sequences: Sequence[ScheduledSequence], hidden: Tensor) -> Tensor:
        """Pool hidden [T, H], the rows of the sequences in order -> float32 [R, H], one row for each prompt that ends
        here.
        """
        lengths = torch.tensor([len(s.token_ids) for s in sequences], device=self._device)
        ends = lengths.cumsum(0)
        ending = torch.tensor([i for i, s in enumerate(sequences) if s.sample], dtype=torch.int64, device=self._device)
        if self._kept is None:
            return hidden[ends[ending] - 1].float()
        slots = torch.tensor([s.slot for s in sequences], device=self._device)
        first = torch.tensor([s.start == 0 for s in sequences], device=self._device)[:, None]
        if self._kind == "first":
            found = torch.where(first, hidden[ends - lengths].float(), self._kept[slots])
            self._kept[slots] = found
            return found[ending]
        sums = torch.segment_reduce(hidden.float(), "sum", lengths=lengths, axis=0)
        sums += torch.where(first, 0.0, self._kept[slots])
        self._kept[slots] = sums
        counts = torch.tensor([s.start + len(s.token_ids) for s in sequences], device=self._device)
        return sums[ending] / counts[ending, None]


NOT_FINITE = "the model computed a vector with numbers that are not finite"


class SecondTexts:
    """The position at which a prompt's second text begins, by slot; 0 without one. See `RequestContext.second_text`."""

    def __init__(self, num_slots: int) -> None:
        self.begins = [0] * num_slots

    def fill(self, init: SlotInit) -> None:
        self.begins[init.slot] = init.context.second_text

    def free(self, slot: int) -> None:
        """Do nothing: the next sequence of the slot replaces the entry."""

    def break_off(self) -> None:
        """Do nothing: the entries stay valid."""


class PoolingRunner(StepRunner):
    """Runs a decoder or encoder on one device and waits for it. The pooler keeps the states of unfinished prompts."""

    def __init__(self, forward_pass: ForwardPass, num_slots: int) -> None:
        """Raises ValueError for a model that generates."""
        facts, cache = forward_pass.parts.decoder.outline.facts, forward_pass.parts.cache
        if facts.pooling is None:
            raise ValueError(f"{facts.architecture} generates text; PoolingRunner only supports pooling models")
        self._texts = SecondTexts(num_slots)
        self._state = BatchState(num_slots, len(cache.groups), cache.num_blocks)
        self._pooler = Pooler(facts.pooling.kind, facts.hidden_size, num_slots, cache.device)
        self._apart = facts.second_text
        super().__init__(forward_pass, self._state, self._texts)

    def _compute(self, plan: StepPlan) -> StepResult:
        sequences = plan.sequences
        cache = self._parts.cache
        inputs = step_inputs(plan, self._state, cache.block_size, cache.device)
        hidden = self._forward(plan, self._forward_pass.run, self._by_text(sequences, inputs))
        pooled = self._pooler.pool(sequences, hidden)
        vectors = self._parts.decoder.logits(pooled) if pooled.shape[0] else pooled
        self._parts.timeline.lap(StepPhase.HEAD)
        return StepResult(_outputs(sequences, vectors), self._forward_pass.fallbacks)

    def _by_text(self, sequences: Sequence[ScheduledSequence], inputs: StepInputs) -> StepInputs:
        """Return inputs in which the token ids of second texts are larger by `Facts.second_text`; unchanged if the
        model does not distinguish texts.
        """
        second = [self._texts.begins[s.slot] for s in sequences] if self._apart else []
        if not any(second):
            return inputs
        lengths = [len(s.token_ids) for s in sequences]
        begins = np.repeat([begin or np.iinfo(np.int64).max for begin in second], lengths)
        later = inputs.positions >= torch.from_numpy(begins).to(inputs.positions.device)
        return replace(inputs, token_ids=inputs.token_ids + self._apart * later)


def _outputs(sequences: Sequence[ScheduledSequence], vectors: Tensor) -> list[SequenceOutput]:
    """Return the output of each sequence; vectors [R, outputs] belong to those that end, in order."""
    finite = vectors.isfinite().all(dim=-1).tolist()
    rows = zip(vectors.float().cpu().numpy(), finite, strict=True)
    found = (SequenceOutput(vector=row.tobytes()) if ok else SequenceOutput(error=NOT_FINITE) for row, ok in rows)
    return [next(found) if s.sample else SequenceOutput() for s in sequences]
