"""Hidden states to one vector a prompt, which may come in several steps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from plimsoll_runtime.engine.protocol.plan import ScheduledSequence
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
