"""Which borders of blocks snapshots are taken at, and that steps end there.

States can only be had where a step ends, and a row may be as dear as thousands of tokens of KV. So a prompt is cut,
which costs a step, only where somebody else is likely to go on: at the border up to which another sequence has had the
same tokens before, for the third to come with them, and at the last border of a long one, for whoever asks the same
again or goes on from there. And each sequence, as long as there are rows, keeps one for itself, at the last border that
it came by: amid a long prompt or an answer, for when it is preempted, and for the next turn of the conversation once it
has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from plimsoll_runtime.engine.kv.prefix_cache import PrefixCache
from plimsoll_runtime.engine.kv.snapshot_pool import SnapshotRows
from plimsoll_runtime.engine.sequence import SequenceState

END_WORTH = 4
"""The last border of a prompt has to be worth so many times as much: all wait a step for it, and few ask again."""
OWN_SHARE = 2
"""One row of so many may be held by running sequences for themselves: the others are for prompts."""


@dataclass(slots=True)
class _Marks:
    """Of a running sequence. Positions are in tokens, at borders of blocks.

    `cuts`: where its prompt is cut, for snapshots that others may begin with, in order. `saved`: its last border that
    somebody has a snapshot of. `row`: the one that it holds for itself (0: none), filled at `border`, and `named` once
    all tokens up to there are known.
    """

    saved: int
    cuts: list[int] = field(default_factory=list)
    row: int = 0
    border: int = 0
    named: bool = True


class SnapshotSchedule:
    """Takes the snapshots of sequences that run; each is to be `worth` so many tokens over the one before it."""

    def __init__(self, rows: SnapshotRows, cache: PrefixCache, block_size: int, worth: int) -> None:
        self.rows = rows
        self._cache = cache
        self._block_size = block_size
        self._worth = worth
        self._most_held = rows.pool.total // OWN_SHARE
        self._held = 0
        self._marks: dict[SequenceState, _Marks] = {}

    def begin(self, sequence: SequenceState) -> None:
        """A sequence has been let in, and has its slot: it goes on from a snapshot, unless it begins anew."""
        start, size = sequence.computed, self._block_size
        if start:
            self.rows.resume(sequence.slot, self._name(sequence, start))
        last = (sequence.known - 1) // size * size
        marks = self._marks[sequence] = _Marks(saved=start)
        parting = min(last, self._cache.seen(sequence, start // size) * size)
        for cut, worth in ((parting, self._worth), (last, END_WORTH * self._worth)):
            if cut - start >= worth:
                marks.cuts.append(cut)
                start = cut

    def cut(self, sequence: SequenceState, count: int) -> int:
        """How many of the next `count` tokens of a prompt to compute, so that a snapshot can be taken behind them."""
        marks, start = self._marks[sequence], sequence.computed
        end = start + count
        if marks.cuts and marks.cuts[0] <= end:
            return marks.cuts[0] - start
        border = end - end % self._block_size
        if end == sequence.length or border <= start or border - marks.saved < self._worth:
            return count
        return border - start if marks.row or self._may_hold() else count

    def passed(self, sequence: SequenceState) -> None:
        """A chunk of a sequence has been planned that ends at a border."""
        marks, border = self._marks[sequence], sequence.computed
        self._name_own(sequence, marks)
        if marks.cuts and marks.cuts[0] == border:
            del marks.cuts[0]
            if self.rows.keep(sequence.slot, self._name(sequence, border), border):
                marks.saved = border
        elif border - marks.saved >= self._worth:
            self._keep_own(sequence, marks)

    def release(self, sequence: SequenceState) -> None:
        """A sequence runs no longer. Its own snapshot is anybody's now."""
        marks = self._marks.pop(sequence, None)
        if marks is not None and marks.row:
            self._name_own(sequence, marks)
            self.rows.let_go(marks.row)
            self._held -= 1

    def awaited(self, sequence: SequenceState, found: int) -> bool:
        """Whether this step saves what spares a waiting sequence more tokens than the `found` ones: the next has it."""
        least, most = found + self._worth, sequence.reusable_tokens
        return any(
            least <= tokens <= most and self._name(sequence, tokens) == name for name, tokens in self.rows.fresh.items()
        )

    def disown(self, sequence: SequenceState) -> None:
        """Make the snapshots of a broken sequence unfindable."""
        for name in sequence.kv.hashes[1:]:
            self.rows.forget(name)
        if (marks := self._marks.get(sequence)) is not None:
            marks.named = True

    def not_saved(self, rows: Sequence[int], sequences: Sequence[SequenceState]) -> None:
        """A step of these sequences came to nothing: what it was to put into rows is not there."""
        for row in rows:
            self.rows.pool.forget(row)
        for sequence in sequences:
            if (marks := self._marks.get(sequence)) is not None and marks.row in rows:
                marks.named = True

    def _keep_own(self, sequence: SequenceState, marks: _Marks) -> None:
        border = sequence.computed
        known = sequence.known >= border
        if known and self.rows.has(self._name(sequence, border)):
            marks.saved = border
            return
        if not marks.row:
            row = self.rows.hold() if self._may_hold() else None
            if row is None:
                return
            marks.row = row
            self._held += 1
        self.rows.refill(sequence.slot, marks.row)
        marks.saved = marks.border = border
        marks.named = False
        if known:
            self.rows.name_fresh(marks.row, self._name(sequence, border), border)
            marks.named = True

    def _name_own(self, sequence: SequenceState, marks: _Marks) -> None:
        """Name the sequence's own snapshot, if that waits for tokens which are known by now, and were looked at."""
        if not marks.named and sequence.known >= marks.border <= sequence.computed - sequence.pending:
            self.rows.name(marks.row, self._name(sequence, marks.border))
            marks.named = True

    def _may_hold(self) -> bool:
        return self._held < self._most_held

    def _name(self, sequence: SequenceState, border: int) -> bytes:
        return self._cache.name(sequence, 0, border // self._block_size - 1)

    def check_integrity(self, running: Sequence[SequenceState]) -> None:
        """Raises AssertionError where rows and what running sequences hold of them disagree."""
        held = [marks.row for marks in self._marks.values() if marks.row]
        assert len(held) == self._held <= self._most_held, f"{len(held)} rows are held, {self._held} counted"
        assert self._marks.keys() == set(running), "marks of a running sequence are lost, or kept of another one"
        for sequence, marks in self._marks.items():
            assert all(cut > sequence.computed for cut in marks.cuts), f"{sequence.request_id} has passed a cut"
        self.rows.check_integrity(held)
