"""The runner of models that pool: computes a step plan, and a vector for each prompt that ends in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from plimsoll_runtime.engine.protocol.plan import ScheduledSequence, SequenceOutput, StepPlan, StepResult
from plimsoll_runtime.engine.step_timing import StepPhase, Timeline
from plimsoll_runtime.execution.forward import BlockCopies, ForwardPass, OutOfMemoryHandler
from plimsoll_runtime.execution.inputs.batch_state import BatchState, StepInputs, step_inputs
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.execution.kv.offload.host_memory import HostBlocks
from plimsoll_runtime.models.decoder import Decoder
from plimsoll_runtime.models.spec.pooling import PoolingKind


class Pooler:
    """Keeps, for each slot, what a prompt's earlier chunks have given: its first state, or the sum of all so far."""

    def __init__(self, kind: PoolingKind, hidden_size: int, num_slots: int, device: torch.device) -> None:
        self._kind = kind
        self._kept = None if kind == "last" else torch.zeros(num_slots, hidden_size, device=device)
        self._device = device

    def pool(self, sequences: Sequence[ScheduledSequence], hidden: Tensor) -> Tensor:
        """hidden [T, H], the rows of the sequences one after the other -> float32 [R, H], of the R that end here."""
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


NOT_FINITE = "its vector holds numbers that are not finite"


class PoolingRunner:
    """Runs one decoder or encoder on one device. What it keeps of prompts is the pooler's."""

    def __init__(
        self,
        decoder: Decoder,
        forward_pass: ForwardPass,
        cache: KvCache,
        num_slots: int,
        timeline: Timeline | None = None,
        host: HostBlocks | None = None,
    ) -> None:
        facts = decoder.outline.facts
        if facts.pooling is None:
            raise ValueError(f"{facts.architecture} generates, and this pools")
        self._decoder = decoder
        self._forward_pass = forward_pass
        self._cache = cache
        self._state = BatchState(num_slots, len(cache.groups), cache.num_blocks)
        self._pooler = Pooler(facts.pooling.kind, facts.hidden_size, num_slots, cache.device)
        self._apart = facts.second_text
        self._second_texts = [0] * num_slots
        self._timeline = timeline
        self._moves = BlockCopies(cache, host)
        self._shortages = OutOfMemoryHandler()

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> StepResult:
        """Compute one step; the outputs stand in the order of the plan's sequences.

        Raises StepMemoryError where the device has too little memory for what the plan computes.
        """
        self._state.begin(plan)
        if plan.freed_slots:
            self._forward_pass.free(plan.freed_slots)
        for init in plan.new_slots:
            self._second_texts[init.slot] = init.context.second_text
        self._moves.begin(plan)
        outputs = self._shortages.watch(plan, self._computed)
        return StepResult(outputs, self._forward_pass.fallbacks)

    def _computed(self, plan: StepPlan) -> Sequence[SequenceOutput]:
        sequences = plan.sequences
        if not sequences:
            return ()
        inputs = step_inputs(plan, self._state, self._cache.block_size, self._cache.device)
        hidden = self._forward_pass.step(plan, self._by_text(sequences, inputs))
        self._lap(StepPhase.FORWARD)
        pooled = self._pooler.pool(sequences, hidden)
        vectors = self._decoder.logits(pooled) if pooled.shape[0] else pooled
        self._lap(StepPhase.HEAD)
        outputs = _outputs(sequences, vectors)
        self._lap(StepPhase.SAMPLE)
        return outputs

    def _by_text(self, sequences: Sequence[ScheduledSequence], inputs: StepInputs) -> StepInputs:
        """With larger token ids where a second text stands, if the model tells them apart: see Facts."""
        second = [self._second_texts[s.slot] for s in sequences] if self._apart else []
        if not any(second):
            return inputs
        lengths = [len(s.token_ids) for s in sequences]
        begins = np.repeat([begin or np.iinfo(np.int64).max for begin in second], lengths)
        later = inputs.positions >= torch.from_numpy(begins).to(inputs.positions.device)
        return replace(inputs, token_ids=inputs.token_ids + self._apart * later)

    def _lap(self, phase: StepPhase) -> None:
        if self._timeline is not None:
            self._timeline.lap(phase)


def _outputs(sequences: Sequence[ScheduledSequence], vectors: Tensor) -> list[SequenceOutput]:
    """Of each sequence: vectors [R, outputs] belong to those that end, in their order."""
    finite = vectors.isfinite().all(dim=-1).tolist()
    rows = iter(zip(vectors.float().cpu().numpy(), finite, strict=True))
    outputs = []
    for sequence in sequences:
        if not sequence.sample:
            outputs.append(SequenceOutput())
            continue
        row, is_finite = next(rows)
        outputs.append(SequenceOutput(vector=row.tobytes()) if is_finite else SequenceOutput(error=NOT_FINITE))
    return outputs
