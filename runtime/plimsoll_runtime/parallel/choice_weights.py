"""Candidates and weights that ranks exchange to choose tokens; see `choice`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from plimsoll_kernels.dispatch import Implementation
from plimsoll_kernels.sampling.op import sample
from plimsoll_kernels.sampling.part_candidates import Candidates
from plimsoll_runtime.models.ops.weight import Range
from plimsoll_runtime.parallel.choice_rows import ChoiceRows, Index
from plimsoll_runtime.parallel.flagged_exchange import FlaggedExchange

MARGIN = 1e-5
"""Candidates must weigh this share more than top-p requires: their sum is added in float32."""

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Longs = NDArray[np.int64]


class ChoiceWeights:
    """The candidates and weights of all ranks, for the rows of a step that are not greedy."""

    def __init__(self, parts: Sequence[Range], rank: int, rows: ChoiceRows, found: Candidates) -> None:
        """`parts`: the tokens of each rank; `found`: this one's candidates."""
        self.rows = rows
        self._parts = parts
        self._rank = rank
        self._found = found
        self._finite = np.zeros(0, dtype=np.bool_)
        self._numbers = np.zeros((0, 0), dtype=np.float32)
        self._mass: list[Doubles] = []
        self._nucleus: list[Doubles] = []
        self._above: list[Doubles] = []

    def exchange(self, exchange: FlaggedExchange, largest: Floats, bound: Floats) -> None:
        """Exchange candidates and weights.

        `largest` [R]: the largest logit of all parts. `bound`: of each nucleus row, the logit up to which no rank has
        other tokens than its candidates.
        """
        rows, listed = self.rows, self._listed(self._rank)
        self._finite = np.isfinite(largest)
        mass, above = self._weights(largest, bound)
        own = (
            *(self._found.listed[listed], self._found.values[listed]),
            *(_thirds(mass[rows.weighed]), _thirds(mass[rows.nucleus]), _thirds(above[rows.nucleus])),
        )
        self._numbers = exchange.gathered(np.concatenate(own).astype(np.float32))
        weighed, nucleus = 3 * rows.weighed.size, 3 * rows.nucleus.size
        for number, counts in zip(self._numbers, rows.counts, strict=True):
            ends = np.cumsum([2 * int(counts.sum()), weighed, nucleus, nucleus])
            _, weighs, masses, aboves, _ = np.split(number, ends)
            self._mass.append(_joined(weighs))
            self._nucleus.append(_joined(masses))
            self._above.append(_joined(aboves))

    def shares(self, uniforms: Doubles) -> tuple[NDArray[np.intp], Doubles]:
        """Return for each weighed row the rank in whose part its token is, and the weight in that part up to it."""
        ends = np.cumsum(self._mass, axis=0)
        target = uniforms[self.rows.weighed] * ends[-1]
        # At most the last part with a weight.
        last = (ends < ends[-1]).sum(axis=0)
        owners = np.minimum((ends <= target).sum(axis=0), last)
        before = np.where(owners > 0, ends[owners - 1, np.arange(len(owners))], 0.0)
        return owners, target - before

    def found(self, owners: NDArray[np.intp], targets: Doubles) -> Floats:
        """Return the tokens of the weighed rows that are in this rank's part, zeros for others."""
        rows = self.rows
        own = self._finite[rows.weighed] & (owners == self._rank)
        if not own.any():
            return np.zeros(len(owners), dtype=np.float32)
        wanted = np.full(len(rows), -1.0)
        wanted[rows.weighed[own]] = np.maximum(targets[own], 0.0)
        tokens = self._parts[self._rank][0] + self._found.find(wanted)[rows.weighed]
        return np.where(own, tokens, 0).astype(np.float32)

    def settled(self) -> NDArray[np.bool_]:
        """Return for each nucleus row whether its candidates have all tokens that top-p keeps."""
        rows, parts = self.rows, self._parts
        if not rows.nucleus.size:
            return np.zeros(0, dtype=np.bool_)
        complete = all(
            counts[rows.nucleus[0]] == end - first for counts, (first, end) in zip(rows.counts, parts, strict=True)
        )
        if complete:
            return np.ones(rows.nucleus.size, dtype=np.bool_)
        above: Doubles = np.sum(self._above, axis=0)
        wanted: Doubles = rows.top_p[rows.nucleus].astype(np.float64) * np.sum(self._nucleus, axis=0)
        return (above > 0.0) & (above >= wanted * (1.0 + MARGIN))

    def sample(
        self, tokens: Longs, wanted: NDArray[np.bool_], uniforms: Doubles, implementation: Implementation
    ) -> None:
        """Write the tokens of the wanted rows with candidates."""
        rows = self.rows
        of = np.sort(np.concatenate([rows.limited, rows.nucleus]))
        of = of[wanted[of]]
        if not of.size:
            return
        values, names = self._merged(of)
        mass = np.zeros(len(rows))
        mass[rows.nucleus] = np.sum(self._nucleus, axis=0)
        logits, params = torch.from_numpy(values), rows.params(of, torch.device("cpu"))
        shares, masses = torch.from_numpy(uniforms[of]), torch.from_numpy(mass[of])
        _, chosen = sample(logits, params, shares, mass=masses, implementation=implementation)
        tokens[of] = names[np.arange(len(of)), chosen.numpy()]

    def _weights(self, largest: Floats, bound: Floats) -> tuple[Doubles, Doubles]:
        rows, count = self.rows, len(self.rows)
        if not rows.weighed.size and not rows.nucleus.size:
            return np.zeros(count), np.zeros(count)
        heat, least = np.zeros(count, dtype=np.float32), np.zeros(count, dtype=np.float32)
        beyond = np.full(count, -np.inf, dtype=np.float32)
        for each in (rows.weighed, rows.nucleus):
            heat[each] = rows.temperature[each]
        heat[~self._finite] = 0.0
        least[rows.weighed] = rows.min_p[rows.weighed]
        beyond[rows.nucleus] = bound
        mass, above = self._found.weigh(heat, least, largest, beyond)
        weighs = heat > 0.0
        return np.where(weighs, mass, 0.0), np.where(weighs, above, 0.0)

    def _listed(self, rank: int) -> NDArray[np.bool_]:
        """Return which columns of a rank's candidates are used, [R, K]."""
        counts = self.rows.counts[rank]
        return np.arange(int(counts.max(initial=0)))[None, :] < counts[:, None]

    def _merged(self, of: Index) -> tuple[Floats, Longs]:
        """Return the candidates of some rows in the vocabulary's order, float32 [N, K], and their tokens. Rows with
        fewer have -infinity at the end.
        """
        values, tokens, used = list[Floats](), list[Longs](), list[NDArray[np.bool_]]()
        for rank, (number, (first, _)) in enumerate(zip(self._numbers, self._parts, strict=True)):
            listed = self._listed(rank)
            count = int(listed.sum())
            value = np.full(listed.shape, -np.inf, dtype=np.float32)
            token = np.zeros(listed.shape, dtype=np.int64)
            token[listed], value[listed] = first + number[:count].astype(np.int64), number[count : 2 * count]
            values.append(value[of])
            tokens.append(token[of])
            used.append(listed[of])
        whole, names = np.concatenate(values, axis=1), np.concatenate(tokens, axis=1)
        is_listed = np.concatenate(used, axis=1)
        if not is_listed.all():
            # Stable, so that candidates stay in order.
            order = np.argsort(~is_listed, axis=1, kind="stable")
            whole, names = np.take_along_axis(whole, order, axis=1), np.take_along_axis(names, order, axis=1)
        return np.ascontiguousarray(whole), names


def _thirds(numbers: Doubles) -> Doubles:
    """Return numbers of at least 0 as three float32 each, whose sum is exact: all first ones, then the rests."""
    first = numbers.astype(np.float32).astype(np.float64)
    second = (numbers - first).astype(np.float32).astype(np.float64)
    return np.concatenate([first, second, numbers - first - second])


def _joined(thirds: Floats) -> Doubles:
    """Return the numbers of `_thirds`."""
    first, second, third = thirds.astype(np.float64).reshape(3, -1)
    return first + second + third
