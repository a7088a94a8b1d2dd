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
from plimsoll_runtime.parallel.choice_weights import ChoiceWeights
from plimsoll_runtime.parallel.flagged_exchange import Adding, FlaggedExchange

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
        if not rows.exchanges_weights:
            left = np.flatnonzero(unsettled & finite)
            self._expect_rows(self._special + left.size)
            return tokens, left
        self._exchange.expect(max(rows.second_size(rank) for rank in range(len(self.parts))))
        weights = ChoiceWeights(self.parts, self._rank, rows, found)
        weights.exchange(self._exchange, largest, bound)
        unsettled[rows.nucleus] = ~weights.settled()
        left = np.flatnonzero(unsettled & finite)
        drawn = self._weighed_tokens(weights, uniforms, finite, self._special + left.size)
        if self.samples:
            chosen = finite[rows.weighed]
            tokens[rows.weighed[chosen]] = drawn[chosen]
            weights.sample(tokens, ~unsettled & finite, uniforms, self._implementation)
        return tokens, left

    def gather(self, logits: Tensor, rows: Sequence[int], *, of_prompt: bool = False) -> Tensor | None:
        """Return all logits [N, vocab] of some rows of the rank's logits [R, V], until the next call; None on other
        ranks than the first one.

        All ranks call it for the same rows. `of_prompt`: it is one of the calls for prompts that `begin` announced.
        """
        if not rows:
            return None
        first, end = self.parts[self._rank]
        most = max(1, GATHERED_BYTES // (4 * self.vocab))
        whole = self._memory(len(rows) if self.samples else min(len(rows), most))
        self._exchange.agree()
        # Nothing is allocated from here on.
        for begin in range(0, len(rows), most):
            part = rows[begin : begin + most]
            at = begin if self.samples else 0
            gathered = whole[at : at + len(part)]
            gathered.zero_()
            for target, row in zip(gathered, part, strict=True):
                target[first:end].copy_(logits[row])
            self._exchange.add_up(gathered)
        self._prompts -= of_prompt
        self._expect_rows(0)
        return whole if self.samples else None

    def sampled(self, logits: Tensor, rows: Index, uniforms: Doubles) -> Longs:
        """Return the tokens of some rows of `begin` that `choose` left, from all their logits [N, vocab]."""
        assert self._rows is not None, "sampled is called before begin"
        params, given = self._rows.params(rows, logits.device), torch.from_numpy(uniforms[rows]).to(logits.device)
        _, tokens = sample(logits, params, given, implementation=self._implementation)
        found: Longs = tokens.cpu().numpy()
        return found

    def _memory(self, rows: int) -> Tensor:
        """Return undefined float32 [rows, vocab]; on a CPU, in memory that the next call uses again."""
        device = self._exchange.device
        if device.type == "cpu":
            return self._buffer.floats(rows, self.vocab)
        return torch.empty(rows, self.vocab, device=device)

    def _expect_rows(self, count: int) -> None:
        """Expect the agreement before `count` rows are gathered, or those of prompts."""
        self._exchange.expect(1 if count or self._prompts else 0)

    def _weighed_tokens(
        self, weights: ChoiceWeights, uniforms: Doubles, finite: NDArray[np.bool_], left: int
    ) -> Floats:
        """Return the tokens of the weighed rows, for the first rank. `left`: the rows to gather next."""
        rows = weights.rows
        owners, targets = weights.shares(uniforms)
        is_elsewhere = bool((owners[finite[rows.weighed]] > 0).any())
        if not is_elsewhere:
            self._expect_rows(left)
            return weights.found(owners, targets)
        self._exchange.expect(rows.weighed.size)
        everyones = self._exchange.gathered(weights.found(owners, targets))
        self._expect_rows(left)
        tokens: Floats = everyones[owners, np.arange(len(owners))]
        return tokens

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
