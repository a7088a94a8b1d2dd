"""The exchange between the ranks of a parallel group: over torch's process groups, or by our CPU kernels."""

from __future__ import annotations

from copy import copy
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from plimsoll_kernels.cpu.exchange import AnyExchange
from plimsoll_runtime.parallel.layout import Layout

TIMEOUT = timedelta(hours=1)
"""Longest wait in a collective. A dead or hung rank is noticed long before, and its group is ended."""


class Exchanging(Protocol):
    """What a rank calls together with all others."""

    device: torch.device

    @property
    def exchange(self) -> int | None:
        """See `Collectives`."""

    def add_up(self, part: Tensor) -> None:
        """Replace a contiguous float32 tensor on `device` by the sum of all ranks' tensors."""

    def gathered(self, data: bytes) -> list[bytes]:
        """Return the bytes of all ranks, in their order."""


class CollectivesDifferError(Exception):
    """The ranks of a group have called different operations."""


class TorchCollectives:
    """Collectives of one rank over a backend of torch, such as gloo or nccl.

    With `check`, all ranks compare the size of each sum before they compute it.
    """

    def __init__(self, backend: str, meeting: str, rank: int, ranks: int, *, check: bool = False) -> None:
        """Join the group at `meeting`, a URL such as file:///run/group, and return when all ranks have joined."""
        self.device = torch.device("cuda" if backend == "nccl" else "cpu")
        dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=ranks, timeout=TIMEOUT)
        self._ranks = ranks
        self._check = check
        self._group: Any = None
        self._first = 0

    def among(self, layout: Layout) -> TorchCollectives:
        """Return the collectives of this rank's stage. All ranks of the group must call this."""
        if layout.stages == 1:
            return self
        own, found = dist.get_rank(), copy(self)
        for first in range(0, layout.size, layout.tensor):
            group = dist.new_group(list(range(first, first + layout.tensor)), timeout=TIMEOUT)
            if own // layout.tensor == first // layout.tensor:
                found._group, found._ranks, found._first = group, layout.tensor, first
        return found

    @property
    def exchange(self) -> None:
        return None

    def add_up(self, part: Tensor) -> None:
        if self._check:
            self._compare(part.nbytes)
        if part.device.type == self.device.type:
            dist.all_reduce(part, group=self._group)
            return
        # gloo adds on the host, also the parts of ranks that compute on GPUs.
        on_host = part.to(self.device)
        dist.all_reduce(on_host, group=self._group)
        part.copy_(on_host)

    def _compare(self, size: int) -> None:
        """Raise CollectivesDifferError if a rank's sum has another number of bytes."""
        own = torch.tensor([size], device=self.device)
        sizes = [torch.empty_like(own) for _ in range(self._ranks)]
        dist.all_gather(sizes, own, group=self._group)
        first, *others = map(int, sizes)
        for rank, other in enumerate(others, 1):
            if other != first:
                raise CollectivesDifferError(
                    f"the ranks' calls differ: rank {self._first} called sum with {first} bytes, rank "
                    f"{self._first + rank} called sum with {other} bytes"
                )

    def gathered(self, data: bytes) -> list[bytes]:
        length = torch.tensor([len(data)], device=self.device)
        lengths = [torch.empty_like(length) for _ in range(self._ranks)]
        dist.all_gather(lengths, length, group=self._group)
        longest = max(int(each) for each in lengths)
        own = torch.zeros(longest, dtype=torch.uint8, device=self.device)
        own[: len(data)] = torch.tensor(list(data), dtype=torch.uint8, device=self.device)
        found = [torch.empty_like(own) for _ in range(self._ranks)]
        dist.all_gather(found, own, group=self._group)
        return [each[: int(size)].cpu().numpy().tobytes() for each, size in zip(found, lengths, strict=True)]


class LocalCollectives:
    """Collectives of one rank over an exchange of the CPU kernels, which steps of these kernels call themselves."""

    def __init__(self, exchange: AnyExchange) -> None:
        self.device = torch.device("cpu")
        self._exchange = exchange

    @property
    def exchange(self) -> int:
        return self._exchange.handle

    def waiting(self) -> float:
        """Return the seconds in which this rank has waited for others so far."""
        return self._exchange.statistics().waiting

    def close(self) -> None:
        """Release the exchange. No other call may be running."""
        self._exchange.close()

    def add_up(self, part: Tensor) -> None:
        self._exchange.sum(part)

    def gathered(self, data: bytes) -> list[bytes]:
        ranks, rank = self._exchange.ranks, self._exchange.rank
        lengths = torch.zeros(ranks)
        lengths[rank] = len(data)
        self._exchange.sum(lengths)
        # Bytes, and lengths below 16 MiB, are exact as float32, and all other ranks add zeros.
        rows = torch.zeros(ranks, max(1, int(lengths.max())))
        rows[rank, : len(data)] = torch.tensor(list(data))
        self._exchange.sum(rows)
        return [row[: int(length)].to(torch.uint8).numpy().tobytes() for row, length in zip(rows, lengths, strict=True)]
