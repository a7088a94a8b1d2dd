"""What sequences keep beside their KV blocks, by slot: recurrent states, caches of Transformers code, or nothing."""

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
"""Where nobody says how many snapshots there are to be: one for so many sequences, and at least so many."""


def snapshot_rows(config: EngineConfig, facts: Facts) -> int:
    """How many snapshots of states are kept. Raises UsageError where some are asked for and cannot be kept."""
    if config.state_snapshots and not facts.states:
        raise UsageError(
            f"--state-snapshots {config.state_snapshots} is for models whose recurrent layers keep states that we can "
            f"copy, and {facts.architecture} has none: leave it out"
        )
    if config.state_snapshots and not config.prefix_caching:
        raise UsageError(
            f"--state-snapshots {config.state_snapshots} keeps what is known of prefixes, and --no-prefix-caching "
            "forbids that; leave one out"
        )
    if not facts.states or not config.prefix_caching:
        return 0
    if config.state_snapshots is not None:
        return config.state_snapshots
    return max(LEAST_SNAPSHOTS, config.max_sequences // SEQUENCES_A_SNAPSHOT)


def states_of(
    outline: Outline, slots: int, dtype: torch.dtype, device: torch.device, *, snapshots: int = 0
) -> SlotStates:
    """The states that a model keeps for sequences in so many slots."""
    if isinstance(outline, TransformersOutline) and outline.own is not None:
        return OwnCaches(outline.own)
    kept = outline.facts.states
    return StateCache(kept, slots, dtype, device, snapshots=snapshots) if kept else NO_STATES


class StateCache(SlotStates):
    """A tensor for each recurrent state: rows of `slots`, one that belongs to nobody for padding, rows of `snapshots`.

    A slot's row is never cleared: whoever begins at position 0 reads zeros, whatever its last owner has left there.
    """

    recurrent: ClassVar[bool] = True

    def __init__(
        self, shapes: Sequence[StateShape], slots: int, dtype: torch.dtype, device: torch.device, *, snapshots: int = 0
    ) -> None:
        self.nobody = slots
        self.device = device
        # Zeros and not `empty`: on a CPU the pages are not taken before they are written.
        rows = slots + 1 + snapshots
        self.tensors = [
            torch.zeros((rows, *each.shape), dtype=torch.float32 if each.wide else dtype, device=device)
            for each in shapes
        ]

    def begin(self, slots: Sequence[int], lengths: Sequence[int], positions: Tensor) -> StepStates:
        """A step of sequences in these slots, with so many rows each; `positions` int64 [T] of all rows."""
        return StepStates(self.tensors, slots, lengths, positions)

    def compute(self, decoder: Decoder, inputs: StepInputs, attention: Attention) -> Tensor:
        """See SlotStates."""
        states = self.begin(inputs.slots, inputs.batch.query_lens, inputs.positions)
        return _advanced(decoder, inputs.token_ids, inputs.positions, attention, states)

    def compute_rows(
        self, decoder: Decoder, token_ids: Tensor, positions: Tensor, attention: Attention, slots: Tensor
    ) -> Tensor:
        """See SlotStates."""
        states = StepStates(self.tensors, (), [1] * len(slots), positions, slots)
        return _advanced(decoder, token_ids, positions, attention, states)

    def resume(self, pairs: Sequence[tuple[int, int]]) -> None:
        """See SlotStates."""
        self._copy([(self.nobody + snapshot, slot) for snapshot, slot in pairs])

    def take_snapshots(self, pairs: Sequence[tuple[int, int]]) -> None:
        """See SlotStates."""
        self._copy([(slot, self.nobody + snapshot) for slot, snapshot in pairs])

    def _copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        sources, targets = to_device(np.array(pairs, dtype=np.int64), self.device).unbind(1)
        for tensor in self.tensors:
            tensor.index_copy_(0, targets, tensor.index_select(0, sources))


class StepStates:
    """See States: of S sequences in `slots`, or in `rows` int64 [S] of the device where those are there already.

    What only ops of torch's need is made when the first of them asks: a decoder that reads and writes the `tensors` at
    `slots` by itself needs none of it.
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
        """See States."""
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
        """See States."""
        found = self.tensors[index].index_select(0, self._rows)
        return found.masked_fill_(self._begins.view(-1, *[1] * (found.dim() - 1)), 0)

    def write(self, index: int, states: Tensor) -> None:
        """See States."""
        self._after[index] = states

    def commit(self) -> None:
        """The pass is over: its states take the place of those that it has read."""
        for index, after in self._after.items():
            tensor = self.tensors[index]
            tensor.index_copy_(0, self._rows, after.to(tensor.dtype))
        self._after.clear()


def _advanced(
    decoder: Decoder, token_ids: Tensor, positions: Tensor, attention: Attention, states: StepStates
) -> Tensor:
    """Hidden states of a pass, behind which its states take the place of those that it has read."""
    hidden = decoder(token_ids, positions, attention, states)
    states.commit()
    return hidden


class OwnCaches(SlotStates):
    """A row for each slot of the runner, from the sequence's first token until its slot is free again."""

    recurrent: ClassVar[bool] = True

    def __init__(self, found: Findings) -> None:
        self.rows = Rows(None if found.axes is None else dict(found.axes))

    def compute(self, decoder: Decoder, inputs: StepInputs, attention: Attention) -> Tensor:
        """See SlotStates."""
        first, starts, every = 0, [], inputs.positions.tolist()
        for length in inputs.batch.query_lens:
            starts.append(every[first])
            first += length
        spans = Spans(inputs.batch.query_lens, inputs.positions.device)
        step = OwnStep(inputs.slots, starts, spans, self.rows)
        return decoder(inputs.token_ids, inputs.positions, attention, step)

    def free(self, slots: Iterable[int]) -> None:
        """See SlotStates: the caches of these slots are freed."""
        self.rows.free(slots)
