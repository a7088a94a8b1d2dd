"""What recurrent layers keep: a tensor for each state, with a row for each of the runner's slots, and for snapshots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.models.program import Facts
from plimsoll_runtime.models.spans import Spans
from plimsoll_runtime.models.spec.state import StateShape

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


class StateCache:
    """`slots` rows for sequences, one more that belongs to nobody (padding may point at it), and `snapshots` behind.

    A slot's row is never cleared: whoever begins at position 0 reads zeros, whatever its last owner has left there.
    """

    def __init__(
        self,
        shapes: Sequence[StateShape],
        slots: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        snapshots: int = 0,
    ) -> None:
        self.nobody = slots
        self.device = device
        # Zeros and not `empty`: on a CPU the pages are not taken before they are written.
        rows = slots + 1 + snapshots
        self.tensors = [
            torch.zeros((rows, *each.shape), dtype=torch.float32 if each.wide else dtype, device=device)
            for each in shapes
        ]

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def begin(self, slots: Sequence[int], lengths: Sequence[int], positions: Tensor) -> StepStates:
        """A step of sequences in these slots, with so many rows each; `positions` int64 [T] of all rows."""
        spans = Spans(lengths, self.device)
        rows = torch.tensor(list(slots), device=self.device)
        if spans.alone:
            return StepStates(self.tensors, rows, positions, spans)
        first_rows = torch.tensor([0, *lengths[:-1]], device=self.device).cumsum(0)
        return StepStates(self.tensors, rows, positions[first_rows], spans)

    def free(self, slots: Iterable[int]) -> None:
        """These slots are nobody's. Their rows stay as they are (see above)."""

    def resume(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy snapshots, numbered from 1 on, to slots: (snapshot, slot)."""
        self._copy([(self.nobody + snapshot, slot) for snapshot, slot in pairs])

    def take_snapshots(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy what slots have now: (slot, snapshot)."""
        self._copy([(slot, self.nobody + snapshot) for slot, snapshot in pairs])

    def _copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        sources, targets = torch.tensor(pairs, device=self.device).unbind(1)
        for tensor in self.tensors:
            tensor.index_copy_(0, targets, tensor.index_select(0, sources))

    def over(self, rows: Tensor, positions: Tensor) -> StepStates:
        """A step of one row each, whose slots and positions are on the device already."""
        return StepStates(self.tensors, rows, positions, Spans([1] * len(rows), self.device))


class StepStates:
    """See States. Rows int64 [S], and the position of each sequence's first token in this step."""

    def __init__(self, tensors: Sequence[Tensor], rows: Tensor, starts: Tensor, spans: Spans) -> None:
        self._tensors = tensors
        self._rows = rows
        self._begins = starts == 0
        self._after: dict[int, Tensor] = {}
        self.spans = spans

    def read(self, index: int) -> Tensor:
        """See States."""
        found = self._tensors[index].index_select(0, self._rows)
        return found.masked_fill_(self._begins.view(-1, *[1] * (found.dim() - 1)), 0)

    def write(self, index: int, states: Tensor) -> None:
        """See States."""
        self._after[index] = states

    def commit(self) -> None:
        """The pass is over: its states take the place of those that it has read."""
        for index, after in self._after.items():
            tensor = self._tensors[index]
            tensor.index_copy_(0, self._rows, after.to(tensor.dtype))
        self._after.clear()
