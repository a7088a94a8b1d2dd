"""The state of sequences outside their KV blocks, by slot: recurrent states, caches of Transformers code, or none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.execution.inputs.batch_state import NO_STATES, SlotStates, StepInputs
from plimsoll_runtime.models.decoder import Decoder
from plimsoll_runtime.models.layers.attention import Attention
from plimsoll_runtime.models.layers.device_copy import to_device
from plimsoll_runtime.models.layers.states import Spans
from plimsoll_runtime.models.program import Facts, Outline
from plimsoll_runtime.models.spec.recurrent import StateShape
from plimsoll_runtime.models.transformers_code.cache_calls import Findings
from plimsoll_runtime.models.transformers_code.cache_rows import OwnStep, Rows
from plimsoll_runtime.models.transformers_code.outline import TransformersOutline

LEAST_SNAPSHOTS = 8
SEQUENCES_A_SNAPSHOT = 4
"""The default number of snapshots: one for each SEQUENCES_A_SNAPSHOT sequences, and at least LEAST_SNAPSHOTS."""


def snapshot_rows(config: EngineConfig, facts: Facts) -> int:
    """Return the number of state snapshots, 0 without recurrent states or prefix caching. Raises UsageError if some are
    requested but impossible.
    """
    if config.state_snapshots and not facts.states:
        raise UsageError(
            f"--state-snapshots {config.state_snapshots} needs recurrent layers with states that can be "
            f"copied, but {facts.architecture} has none; remove it"
        )
    if config.state_snapshots and not config.prefix_caching:
        raise UsageError(
            f"--state-snapshots {config.state_snapshots} needs prefix caching, but --no-prefix-caching "
            "is set; remove one of them"
        )
    if not facts.states or not config.prefix_caching:
        return 0
    if config.state_snapshots is not None:
        return config.state_snapshots
    return max(LEAST_SNAPSHOTS, config.max_sequences // SEQUENCES_A_SNAPSHOT)


def states_of(
    outline: Outline, slots: int, dtype: torch.dtype, device: torch.device, *, snapshots: int = 0
) -> SlotStates:
    """Return the states of a model's sequences in `slots` slots."""
    if isinstance(outline, TransformersOutline) and outline.own is not None:
        return OwnCaches(outline.own)
    kept = outline.facts.states
    return StateCache(kept, slots, dtype, device, snapshots=snapshots) if kept else NO_STATES


class StateCache(SlotStates):
    """A tensor for each recurrent state, with a row for each of `slots` slots, then one for padding, then one for each
    of `snapshots` snapshots.

    A slot's row is never cleared: a sequence at position 0 reads zeros instead of it.
    """

    recurrent: ClassVar[bool] = True

    def __init__(
        self, shapes: Sequence[StateShape], slots: int, dtype: torch.dtype, device: torch.device, *, snapshots: int = 0
    ) -> None:
        self.nobody = slots
        self.device = device
        # Zeros instead of `empty`: on a CPU, pages are taken only when they are written.
        rows = slots + 1 + snapshots
        self.tensors = [
            torch.zeros((rows, *each.shape), dtype=torch.float32 if each.wide else dtype, device=device)
            for each in shapes
        ]

    def begin(self, slots: Sequence[int], lengths: Sequence[int], positions: Tensor) -> StepStates:
        """Return the states of a step of sequences in these slots, with `lengths` rows each; `positions` int64 [T] of
        all rows.
        """
        return StepStates(self.tensors, slots, lengths, positions)

    def compute(self, decoder: Decoder, inputs: StepInputs, attention: Attention) -> Tensor:
        states = self.begin(inputs.slots, inputs.batch.query_lens, inputs.positions)
        return _advanced(decoder, inputs.token_ids, inputs.positions, attention, states)

    def compute_rows(
        self, decoder: Decoder, token_ids: Tensor, positions: Tensor, attention: Attention, slots: Tensor
    ) -> Tensor:
        states = StepStates(self.tensors, (), [1] * len(slots), positions, slots)
        return _advanced(decoder, token_ids, positions, attention, states)

    def resume(self, pairs: Sequence[tuple[int, int]]) -> None:
        self._copy([(self.nobody + snapshot, slot) for snapshot, slot in pairs])

    def take_snapshots(self, pairs: Sequence[tuple[int, int]]) -> None:
        self._copy([(slot, self.nobody + snapshot) for slot, snapshot in pairs])

    def _copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        sources, targets = to_device(np.array(pairs, dtype=np.int64), self.device).unbind(1)
        for tensor in self.tensors:
            tensor.index_copy_(0, targets, tensor.index_select(0, sources))


class StepStates:
    """Implements `States` for S sequences in `slots`, or in `rows` int64 [S] if these are on the device already.

    Tensors that only torch's ops need are created on first use; a decoder that reads and writes `tensors` at `slots`
    itself needs none of them.
    """

    def __init__(
        self,
        tensors: Sequence[Tensor],
        slots: Sequence[int],
        lengths: Sequence[int],
        positions: Tensor,
        rows: Tensor | None = None,
    ) -> None:
        self.tensors = tensors
        self.slots = slots
        self._lengths = lengths
        self._positions = positions
        self._on_device = rows
        self._after: dict[int, Tensor] = {}

    @cached_property
    def spans(self) -> Spans:
        return Spans(self._lengths, self._positions.device)

    @cached_property
    def _rows(self) -> Tensor:
        if self._on_device is not None:
            return self._on_device
        return to_device(np.array(self.slots, dtype=np.int64), self._positions.device)

    @cached_property
    def _begins(self) -> Tensor:
        if self.spans.alone:
            return self._positions == 0
        first_rows = np.cumsum([0, *self._lengths[:-1]], dtype=np.int64)
        return self._positions[to_device(first_rows, self._positions.device)] == 0

    def read(self, index: int) -> Tensor:
        found = self.tensors[index].index_select(0, self._rows)
        return found.masked_fill_(self._begins.view(-1, *[1] * (found.dim() - 1)), 0)

    def write(self, index: int, states: Tensor) -> None:
        self._after[index] = states

    def commit(self) -> None:
        """Replace the states that the pass has read with its own, when it is complete."""
        for index, after in self._after.items():
            tensor = self.tensors[index]
            tensor.index_copy_(0, self._rows, after.to(tensor.dtype))
        self._after.clear()


def _advanced(
    decoder: Decoder, token_ids: Tensor, positions: Tensor, attention: Attention, states: StepStates
) -> Tensor:
    """Run a pass of the decoder, commit its states, and return its hidden states."""
    hidden = decoder(token_ids, positions, attention, states)
    states.commit()
    return hidden


class OwnCaches(SlotStates):
    """Caches of Transformers code: one for each slot, from the sequence's first token until the slot is freed."""

    recurrent: ClassVar[bool] = True

    def __init__(self, found: Findings) -> None:
        self.rows = Rows(None if found.axes is None else dict(found.axes))

    def compute(self, decoder: Decoder, inputs: StepInputs, attention: Attention) -> Tensor:
        first, starts, every = 0, [], inputs.positions.tolist()
        for length in inputs.batch.query_lens:
            starts.append(every[first])
            first += length
        spans = Spans(inputs.batch.query_lens, inputs.positions.device)
        step = OwnStep(inputs.slots, starts, spans, self.rows)
        return decoder(inputs.token_ids, inputs.positions, attention, step)

    def free(self, slots: Iterable[int]) -> None:
        self.rows.free(slots)
