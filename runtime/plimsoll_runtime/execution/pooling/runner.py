"""The runner of models that generate nothing: computes a step's plan, and a vector of each prompt that ends in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from plimsoll_runtime.engine.protocol.plan import ScheduledSequence, SequenceOutput, StepPlan, StepResult
from plimsoll_runtime.engine.step_timing import StepPhase, Timeline
from plimsoll_runtime.execution.batch_state import BatchState
from plimsoll_runtime.execution.device.shortage import Shortages
from plimsoll_runtime.execution.forward import ForwardPass
from plimsoll_runtime.execution.inputs import StepInputs, step_inputs
from plimsoll_runtime.execution.kv_cache import KvCache
from plimsoll_runtime.execution.moves import BlockMoves
from plimsoll_runtime.execution.pooling.pooler import Pooler
from plimsoll_runtime.execution.tiers.host import HostBlocks
from plimsoll_runtime.models.decoder import Decoder

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
        self._moves = BlockMoves(cache, host)
        self._shortages = Shortages()

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> StepResult:
        """Compute one step; the outputs stand in the order of the plan's sequences.

        Raises StepMemoryError where the device has too little memory for what the plan computes.
        """
        self._state.begin(plan)
        if plan.freed_slots:
            self._forward_pass.free(plan.freed_slots)
        for init in plan.new_slots:
            self._second_texts[init.slot] = init.second_text
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
