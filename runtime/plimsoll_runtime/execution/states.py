"""What recurrent layers keep: a tensor for each state, with a row for each of the runner's slots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from plimsoll_runtime.models.spans import Spans
from plimsoll_runtime.models.spec.state import StateShape


class StateCache:
    """`slots` rows for sequences, and one more that belongs to nobody: padding may point at it.

    A row is never cleared: whoever begins at position 0 reads zeros, whatever the row's last owner has left there.
    """

    def __init__(self, shapes: Sequence[StateShape], slots: int, dtype: torch.dtype, device: torch.device) -> None:
        self.nobody = slots
        self.device = device
        # Zeros and not `empty`: on a CPU the pages are not taken before they are written.
        self.tensors = [
            torch.zeros((slots + 1, *each.shape), dtype=torch.float32 if each.wide else dtype, device=device)
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
