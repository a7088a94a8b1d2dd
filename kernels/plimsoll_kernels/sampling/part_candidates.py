"""Candidates of a part of the vocabulary, for a choice of tokens over several parts: see `Candidates`."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plimsoll_kernels.cpu.library import kernels
from plimsoll_kernels.dispatch import Implementation
from plimsoll_kernels.sampling.reference import find_tokens, group_sums, weights_of

GROUP = 512
"""A part begins at a multiple of this number of tokens, so that sums of weights have the groups of the whole row (512
in the reference, 64 in the C++ kernel)."""

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]


class Candidates(Protocol):
    """The largest logits of R rows, which are a part of the vocabulary's, and their weights. Arrays are on the host;
    tokens count from the part's first.

    - `best` `[R]`: the largest logit, NaN if there is one. `tokens` `[R]`: the first token with it.
    - `values` `[R, K]`: of each row the `counts` largest logits (of equal ones the first), in the vocabulary's order,
      and undefined numbers behind them. `listed` `[R, K]`: their tokens. If a row has a NaN, they are -infinity.
    """

    best: Floats
    tokens: Longs
    values: Floats
    listed: Ints

    def weigh(self, temperature: Floats, min_p: Floats, largest: Floats, bound: Floats) -> tuple[Doubles, Doubles]:
        """Return the weight `[R]` of each row, e^((logit - largest) / temperature) summed over all tokens that weigh at
        least `min_p`, and that of its candidates above `bound` (without `min_p`).

        All `[R]`; rows with a temperature of 0 have undefined weights.
        """

    def find(self, target: Doubles) -> Longs:
        """Return the token `[R]` at which the cumulative weight of `weigh` exceeds the target; undefined for targets
        below 0.
        """


def candidates(logits: Tensor, counts: Ints, *, implementation: Implementation = "auto") -> Candidates:
    """Return the candidates of logits float32 `[R, V]` with contiguous rows, which must stay unchanged meanwhile.
    `counts` `[R]`: the number of candidates of each row, at most V.

    On a CPU the C++ kernel computes them, elsewhere torch.
    """
    if logits.dim() != 2 or logits.dtype is not torch.float32 or logits.stride(-1) != 1:
        raise ValueError(f"logits must be float32 [R, V] with contiguous rows, got {logits.dtype} {list(logits.shape)}")
    found = kernels(torch.float32) if implementation == "auto" and logits.device.type == "cpu" else None
    if found is None:
        return ReferenceCandidates(logits, counts)
    from plimsoll_kernels.cpu.part_candidates import KernelCandidates

    return KernelCandidates(found, logits, counts)


class ReferenceCandidates:
    """`Candidates` in plain torch, with the weights and groups of `sample_reference`."""

    def __init__(self, logits: Tensor, counts: Ints) -> None:
        self._logits = logits
        self._counts = counts
        self._weights: Tensor | None = None
        best, tokens = logits.max(dim=-1)
        self.best, self.tokens = best.cpu().numpy(), tokens.cpu().numpy()
        most = int(counts.max(initial=0))
        self.values = np.full((len(counts), most), -np.inf, dtype=np.float32)
        self.listed = np.zeros((len(counts), most), dtype=np.int32)
        rows = ((counts > 0) & ~np.isnan(self.best)).nonzero()[0]
        if rows.size:
            self._list(rows, most)

    def _list(self, rows: NDArray[np.intp], most: int) -> None:
        logits = self._logits[torch.from_numpy(rows).to(self._logits.device)]
        counts = torch.from_numpy(self._counts[rows]).to(logits.device).long()[:, None]
        values, tokens = torch.topk(logits, most)
        least = values.gather(-1, counts - 1)
        tied = ((logits >= least).sum(dim=-1) > counts.squeeze(-1)).cpu().numpy()
        first = tokens.cpu().numpy()
        for at, row in enumerate(rows.tolist()):
            count = int(self._counts[row])
            listed = np.sort(first[at, :count])
            if tied[at]:
                # torch.topk chooses any of equal logits.
                above, equal = (logits[at] > least[at]).nonzero(), (logits[at] == least[at]).nonzero()
                listed = torch.cat([above, equal[: count - len(above)]]).squeeze(-1).sort().values.cpu().numpy()
            self.listed[row, :count] = listed
        found = torch.from_numpy(self.listed[rows]).to(logits.device).long()
        self.values[rows] = logits.gather(-1, found).cpu().numpy()

    def weigh(self, temperature: Floats, min_p: Floats, largest: Floats, bound: Floats) -> tuple[Doubles, Doubles]:
        device = self._logits.device
        heat, least, top = (torch.from_numpy(each).to(device) for each in (temperature, min_p, largest))
        weights = weights_of(self._logits - top[:, None], heat)
        self._weights = weights.masked_fill_(weights < least[:, None], 0.0)
        values = torch.from_numpy(np.where(self.values > bound[:, None], self.values, -np.inf))
        inside = torch.arange(values.shape[1]) < torch.from_numpy(self._counts)[:, None]
        listed = weights_of(values - torch.from_numpy(largest)[:, None], torch.from_numpy(temperature))
        above = listed.masked_fill(~inside, 0.0).sum(dim=-1, dtype=torch.float64)
        return group_sums(self._weights)[:, -1].cpu().numpy(), above.numpy()

    def find(self, target: Doubles) -> Longs:
        assert self._weights is not None, "find is called before weigh"
        tokens, rows = np.zeros(len(target), dtype=np.int64), (target >= 0.0).nonzero()[0]
        device = self._weights.device
        wanted = torch.from_numpy(target[rows]).to(device)
        tokens[rows] = find_tokens(self._weights[torch.from_numpy(rows).to(device)], wanted).cpu().numpy()
        return tokens
