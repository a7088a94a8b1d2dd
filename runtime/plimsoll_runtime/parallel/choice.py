"""The choice of tokens by ranks that each have the logits of a part of the vocabulary.

All ranks make the same exchanges, and decide from their results alone which ones follow:

1. The largest logit of each row and its token. Greedy rows are done.
2. The largest logits of each part (candidates), and its weight relative to the largest logit of all. A top-k, and
   mostly a top-p, keeps only candidates: the first rank samples from them as from a whole row. Without both, all ranks
   know in which part the cumulative weight exceeds the random share of the total.
3. The tokens that the ranks of these parts find, unless all are the first rank's.
4. All logits of the rows that are left, for the first rank.

Weights have the same bits as those of a whole row; only sums over parts may differ from it in the last bit of a double.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plimsoll_kernels.cpu.huge_pages import Buffer
from plimsoll_kernels.dispatch import Implementation
from plimsoll_kernels.sampling.op import sample
from plimsoll_kernels.sampling.part_candidates import Candidates, candidates
from plimsoll_runtime.execution.sampling.sampler import GATHERED_BYTES
from plimsoll_runtime.execution.sampling.state import NO_TOKEN
from plimsoll_runtime.models.ops.weight import Range
from plimsoll_runtime.parallel.choice_rows import ChoiceRows, Index
from plimsoll_runtime.parallel.flagged_exchange import Adding, FlaggedExchange

MARGIN = 1e-5
"""Candidates must weigh this share more than top-p requires: their sum is added in float32."""

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Longs = NDArray[np.int64]


class Choice:
    """The choices of one rank. `parts`: the tokens of each of the ranks that `group` connects; the first one samples.

    Call the methods in the order `begin`, `choose`, `gather`, and `gather` again for each part of prompts. If one of
    them or the work between them fails, call `fail`.
    """

    def __init__(
        self, group: Adding, parts: Sequence[Range], rank: int, *, implementation: Implementation = "auto"
    ) -> None:
        self.parts = parts
        self.samples = rank == 0
        self._rank = rank
        self._implementation = implementation
        self._exchange = FlaggedExchange(group, len(parts), rank)
        self._buffer = Buffer()
        self._rows: ChoiceRows | None = None
        self._special = 0
        self._prompts = 0

    @property
    def vocab(self) -> int:
        """Number of tokens of all parts."""
        return self.parts[-1][1]

    def begin(self, rows: ChoiceRows, special: int, prompts: int) -> None:
        """Begin a step, before it computes anything: `choose` gets `rows`, and `gather` `special` other rows at least.
        After that there are `prompts` calls of `gather` for log probabilities of prompts.
        """
        self._rows, self._special, self._prompts = rows, special, prompts
        if len(rows):
            self._exchange.expect(2 * len(rows) + rows.nucleus.size)
        else:
            self._expect_rows(special)

    def fail(self) -> None:
        """Break off the step on all ranks, because this one has failed."""
        self._exchange.fail()

    def choose(self, logits: Tensor, uniforms: Doubles) -> tuple[Longs, Index]:
        """Choose a token for each row of `begin`, from the rank's logits float32 [R, V]; `uniforms` [R] are in [0, 1).

        Returns the tokens [R], which only the first rank has, and the rows, in ascending order, whose tokens need all
        logits: they must be sampled after `gather`. A row whose largest logit is not finite has NO_TOKEN.
        """
        rows = self._rows
        assert rows is not None, "choose is called before begin"
        if not len(rows):
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.intp)
        found = candidates(logits, rows.counts[self._rank], implementation=self._implementation)
        tokens, largest, bound = self._largest(rows, found)
        finite = np.isfinite(largest)
        tokens[~finite] = NO_TOKEN
        unsettled = np.zeros(len(rows), dtype=np.bool_)
        unsettled[rows.deep] = True
        if rows.exchanges_weights:
            self._exchange.expect(max(rows.second_size(rank) for rank in range(len(self.parts))))
            drawing = _Drawing(self.parts, self._rank, rows, found, largest, finite, self._implementation)
            drawing.exchange(self._exchange, bound)
            owners, targets = drawing.shares(uniforms)
            told = bool((owners[finite[rows.weighed]] > 0).any())
            unsettled[rows.nucleus] = ~drawing.settled()
            left = np.flatnonzero(unsettled & finite)
            if told:
                self._exchange.expect(rows.weighed.size)
            else:
                self._expect_rows(self._special + left.size)
            own = drawing.found(owners, targets)
            if told:
                everyones = self._exchange.gathered(own)
                self._expect_rows(self._special + left.size)
                own = everyones[owners, np.arange(len(owners))]
            if self.samples:
                chosen = rows.weighed[finite[rows.weighed]]
                tokens[chosen] = own[finite[rows.weighed]]
                drawing.sample(tokens, ~unsettled & finite, uniforms)
        else:
            left = np.flatnonzero(unsettled & finite)
            self._expect_rows(self._special + left.size)
        return tokens, left

    def gather(self, logits: Tensor, of_prompt: bool = False) -> Tensor | None:
        """Return all logits [R, vocab] of some rows, given the rank's [R, V]; None on other ranks than the first one.

        All ranks call it for the same rows. `of_prompt`: the rows are part of a prompt.
        """
        if not len(logits):
            return None
        first, end = self.parts[self._rank]
        most = max(1, GATHERED_BYTES // (4 * self.vocab))
        kept = len(logits) if self.samples else min(len(logits), most)
        whole = self._memory(kept)
        self._exchange.agree()
        for begin in range(0, len(logits), most):
            part = logits[begin : begin + most]
            at = begin if self.samples else 0
            rows = whole[at : at + len(part)]
            rows.zero_()
            rows[:, first:end].copy_(part)
            self._exchange.add_up(rows)
        self._prompts -= of_prompt
        self._expect_rows(0)
        return whole if self.samples else None

    def sampled(self, logits: Tensor, rows: Index, uniforms: Doubles) -> Longs:
        """Return the tokens of some rows of `begin` that `choose` left, from all their logits [N, vocab]."""
        assert self._rows is not None, "sampled is called before begin"
        params, given = self._rows.params(rows, logits.device), torch.from_numpy(uniforms[rows]).to(logits.device)
        _, tokens = sample(logits, params, given, implementation=self._implementation)
        return tokens.cpu().numpy()

    def _memory(self, rows: int) -> Tensor:
        """Return undefined float32 [rows, vocab]; on a CPU, in memory that the next call uses again."""
        device = self._exchange.device
        if device.type == "cpu":
            return self._buffer.floats(rows, self.vocab)
        return torch.empty(rows, self.vocab, device=device)

    def _expect_rows(self, count: int) -> None:
        """Expect the agreement before `count` rows are gathered, or those of prompts."""
        self._exchange.expect(1 if count or self._prompts else 0)

    def _largest(self, rows: ChoiceRows, found: Candidates) -> tuple[Longs, Floats, Floats]:
        """Exchange the largest logits. Return their tokens and the logits [R], and for each nucleus row the logit up to
        which no rank has other tokens than its candidates.
        """
        count, (first, end) = len(rows), self.parts[self._rank]
        least = np.full(rows.nucleus.size, -np.inf, dtype=np.float32)
        if rows.nucleus.size:
            listed = rows.counts[self._rank][rows.nucleus[0]]
            if listed < end - first:
                least = found.values[rows.nucleus, :listed].min(axis=1)
        numbers = self._exchange.gathered(np.concatenate([first + found.tokens, found.best, least]).astype(np.float32))
        best = numbers[:, count : 2 * count]
        owners, all_rows = best.argmax(axis=0), np.arange(count)
        tokens = numbers[owners, all_rows].astype(np.int64)
        return tokens, best[owners, all_rows], numbers[:, 2 * count :].max(axis=0, initial=-np.inf)


class _Drawing:
    """The rows of a step that are not greedy: weights and candidates of all ranks.

    `largest` [R]: of all parts; `finite` [R]: whether it is.
    """

    def __init__(
        self,
        parts: Sequence[Range],
        rank: int,
        rows: ChoiceRows,
        found: Candidates,
        largest: Floats,
        finite: NDArray[np.bool_],
        implementation: Implementation,
    ) -> None:
        self._parts = parts
        self._rank = rank
        self._implementation = implementation
        self._rows = rows
        self._found = found
        self._largest = largest
        self._finite = finite

    def exchange(self, exchange: FlaggedExchange, bound: Floats) -> None:
        """Exchange candidates and weights. `bound` [N]: that of each nucleus row."""
        rows, rank = self._rows, self._rank
        mass, above = self._weights(bound)
        listed = self._listed(rank)
        own = [self._found.listed[listed], self._found.values[listed]]
        own += [_thirds(mass[rows.weighed]), _thirds(mass[rows.nucleus]), _thirds(above[rows.nucleus])]
        self._numbers = exchange.gathered(np.concatenate(own).astype(np.float32))
        weighed, nucleus = 3 * rows.weighed.size, 3 * rows.nucleus.size
        self._mass, self._nucleus, self._above = [], [], []
        for number, counts in zip(self._numbers, rows.counts, strict=True):
            _, weighs, masses, aboves, _ = np.split(
                number, np.cumsum([2 * int(counts.sum()), weighed, nucleus, nucleus])
            )
            self._mass.append(_joined(weighs))
            self._nucleus.append(_joined(masses))
            self._above.append(_joined(aboves))

    def shares(self, uniforms: Doubles) -> tuple[NDArray[np.intp], Doubles]:
        """Return for each weighed row the rank in whose part its token is, and the weight in that part up to it."""
        ends = np.cumsum(self._mass, axis=0)
        target = uniforms[self._rows.weighed] * ends[-1]
        # At most the last part with a weight.
        last = (ends < ends[-1]).sum(axis=0)
        owners = np.minimum((ends <= target).sum(axis=0), last)
        before = np.where(owners > 0, ends[owners - 1, np.arange(len(owners))], 0.0)
        return owners, target - before

    def found(self, owners: NDArray[np.intp], targets: Doubles) -> Floats:
        """Return the tokens of the weighed rows that are in this rank's part, zeros for others."""
        rows = self._rows
        own = self._finite[rows.weighed] & (owners == self._rank)
        if not own.any():
            return np.zeros(len(owners), dtype=np.float32)
        wanted = np.full(len(rows), -1.0)
        wanted[rows.weighed[own]] = np.maximum(targets[own], 0.0)
        tokens = self._parts[self._rank][0] + self._found.find(wanted)[rows.weighed]
        return np.where(own, tokens, 0).astype(np.float32)

    def settled(self) -> NDArray[np.bool_]:
        """Return for each nucleus row whether its candidates have all tokens that top-p keeps."""
        rows, parts = self._rows, self._parts
        if not rows.nucleus.size:
            return np.zeros(0, dtype=np.bool_)
        complete = all(
            counts[rows.nucleus[0]] == end - first for counts, (first, end) in zip(rows.counts, parts, strict=True)
        )
        if complete:
            return np.ones(rows.nucleus.size, dtype=np.bool_)
        above = sum(self._above)
        wanted = rows.top_p[rows.nucleus].astype(np.float64) * sum(self._nucleus)
        return (above > 0.0) & (above >= wanted * (1.0 + MARGIN))

    def sample(self, tokens: Longs, wanted: NDArray[np.bool_], uniforms: Doubles) -> None:
        """Write the tokens of the wanted rows with candidates."""
        rows = self._rows
        of = np.sort(np.concatenate([rows.limited, rows.nucleus]))
        of = of[wanted[of]]
        if not of.size:
            return
        values, names = self._merged(of)
        mass = np.zeros(len(rows))
        mass[rows.nucleus] = sum(self._nucleus)
        logits, params = torch.from_numpy(values), rows.params(of, torch.device("cpu"))
        shares, masses = torch.from_numpy(uniforms[of]), torch.from_numpy(mass[of])
        _, chosen = sample(logits, params, shares, mass=masses, implementation=self._implementation)
        tokens[of] = names[np.arange(len(of)), chosen.numpy()]

    def _weights(self, bound: Floats) -> tuple[Doubles, Doubles]:
        rows, count = self._rows, len(self._rows)
        if not rows.weighed.size and not rows.nucleus.size:
            return np.zeros(count), np.zeros(count)
        heat, least = np.zeros(count, dtype=np.float32), np.zeros(count, dtype=np.float32)
        beyond = np.full(count, -np.inf, dtype=np.float32)
        for each in (rows.weighed, rows.nucleus):
            heat[each] = rows.temperature[each]
        heat[~self._finite] = 0.0
        least[rows.weighed] = rows.min_p[rows.weighed]
        beyond[rows.nucleus] = bound
        mass, above = self._found.weigh(heat, least, self._largest, beyond)
        weighs = heat > 0.0
        return np.where(weighs, mass, 0.0), np.where(weighs, above, 0.0)

    def _listed(self, rank: int) -> NDArray[np.bool_]:
        """Return which columns of a rank's candidates are used, [R, K]."""
        counts = self._rows.counts[rank]
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
        whole, names, there = (np.concatenate(each, axis=1) for each in (values, tokens, used))
        if not there.all():
            # Stable, so that candidates stay in order.
            order = np.argsort(~there, axis=1, kind="stable")
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
