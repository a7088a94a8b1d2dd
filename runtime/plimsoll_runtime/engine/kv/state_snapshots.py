"""Chooses the block boundaries at which state snapshots are taken, and cuts prompts there.

States can be copied only at the end of a step, and a row may be as large as thousands of tokens of KV. Cutting a prompt
costs a step, so it is done only at boundaries from which another sequence is likely to resume: the last one that it
shares with an earlier sequence, and the last one of a long prompt. In addition each running sequence, while rows are
free, keeps one snapshot of its own at the last boundary that it passed. It is used if the sequence is preempted, and in
the next turn of the conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from plimsoll_runtime.engine.kv.prefix_cache import PrefixCache
from plimsoll_runtime.engine.kv.snapshot_pool import SnapshotRows
from plimsoll_runtime.engine.sequence import SequenceState

END_WORTH = 4
"""Factor on `worth` for the last boundary of a prompt: a snapshot there costs every prompt a step, and is rarely
reused."""
OWN_SHARE = 2
"""Running sequences hold at most 1/OWN_SHARE of the rows for themselves; the others are for prompts."""


@dataclass(slots=True)
class _Progress:
    """The snapshots of a running sequence. Positions are in tokens, at block boundaries.

    - `saved`: the last boundary with a snapshot.
    - `cuts`: boundaries at which its prompt is still to be cut, in order, for snapshots that other sequences can use.
    - `row`: the row that it holds for itself (0: none), filled at `boundary`.
    - `named`: whether the row has its name; all tokens up to `boundary` must be known for it.
    """

    saved: int
    cuts: list[int] = field(default_factory=list)
    row: int = 0
    boundary: int = 0
    named: bool = True


class SnapshotSchedule:
    """Takes the snapshots of running sequences. Each must cover at least `worth` tokens more than the one before it."""

    def __init__(self, rows: SnapshotRows, cache: PrefixCache, block_size: int, worth: int) -> None:
        self.rows = rows
        self._cache = cache
        self._block_size = block_size
        self._worth = worth
        self._most_held = rows.pool.total // OWN_SHARE
        self._held = 0
        self._progress: dict[SequenceState, _Progress] = {}

    def begin(self, sequence: SequenceState) -> None:
        """Register an admitted sequence in its slot: resume from its snapshot, if any, and choose the cuts of its
        prompt.
        """
        start, size = sequence.computed, self._block_size
        if start:
            self.rows.resume(sequence.slot, self._name(sequence, start))
        last = (sequence.known - 1) // size * size
        progress = self._progress[sequence] = _Progress(saved=start)
        parting = min(last, self._cache.seen(sequence, start // size) * size)
        for cut, worth in ((parting, self._worth), (last, END_WORTH * self._worth)):
            if cut - start >= worth:
                progress.cuts.append(cut)
                start = cut

    def cut(self, sequence: SequenceState, count: int) -> int:
        """Return how many of a prompt's next `count` tokens to compute, so that a snapshot can be taken after them."""
        progress, start = self._progress[sequence], sequence.computed
        end = start + count
        if progress.cuts and progress.cuts[0] <= end:
            return progress.cuts[0] - start
        boundary = end - end % self._block_size
        if end == sequence.length or boundary <= start or boundary - progress.saved < self._worth:
            return count
        return boundary - start if progress.row or self._may_hold() else count

    def passed(self, sequence: SequenceState) -> None:
        """Take the snapshots due after a planned chunk of a sequence that ends at a block boundary."""
        progress, boundary = self._progress[sequence], sequence.computed
        self._name_own(sequence, progress)
        if progress.cuts and progress.cuts[0] == boundary:
            del progress.cuts[0]
            if self.rows.keep(sequence.slot, self._name(sequence, boundary), boundary):
                progress.saved = boundary
        elif boundary - progress.saved >= self._worth:
            self._keep_own(sequence, progress)

    def release(self, sequence: SequenceState) -> None:
        """Forget a sequence that is released. Its own snapshot can be found by any sequence."""
        progress = self._progress.pop(sequence, None)
        if progress is not None and progress.row:
            self._name_own(sequence, progress)
            self.rows.let_go(progress.row)
            self._held -= 1

    def awaited(self, sequence: SequenceState, found: int) -> bool:
        """Whether the step being planned saves a snapshot of this sequence's tokens that covers at least `worth` more
        than the `found` ones. The sequence then waits for it.
        """
        least, most = found + self._worth, sequence.reusable_tokens
        return any(
            least <= tokens <= most and self._name(sequence, tokens) == name for name, tokens in self.rows.fresh.items()
        )

    def disown(self, sequence: SequenceState) -> None:
        """Remove the snapshots of a sequence that ended with an error."""
        for name in sequence.kv.hashes[1:]:
            self.rows.forget(name)
        if (progress := self._progress.get(sequence)) is not None:
            progress.named = True

    def not_saved(self, rows: Sequence[int], sequences: Sequence[SequenceState]) -> None:
        """Remove the snapshots that a failed step of these sequences was to save in `rows`."""
        for row in rows:
            self.rows.pool.forget(row)
        for sequence in sequences:
            if (progress := self._progress.get(sequence)) is not None and progress.row in rows:
                progress.named = True

    def _keep_own(self, sequence: SequenceState, progress: _Progress) -> None:
        boundary = sequence.computed
        known = sequence.known >= boundary
        if known and self.rows.has(self._name(sequence, boundary)):
            progress.saved = boundary
            return
        if not progress.row:
            row = self.rows.hold() if self._may_hold() else None
            if row is None:
                return
            progress.row = row
            self._held += 1
        self.rows.refill(sequence.slot, progress.row)
        progress.saved = progress.boundary = boundary
        progress.named = False
        if known:
            self.rows.name_fresh(progress.row, self._name(sequence, boundary), boundary)
            progress.named = True

    def _name_own(self, sequence: SequenceState, progress: _Progress) -> None:
        """Name the sequence's own snapshot, once all tokens up to it are known and have been checked."""
        if not progress.named and sequence.known >= progress.boundary <= sequence.computed - sequence.pending:
            self.rows.name(progress.row, self._name(sequence, progress.boundary))
            progress.named = True

    def _may_hold(self) -> bool:
        return self._held < self._most_held

    def _name(self, sequence: SequenceState, boundary: int) -> bytes:
        return self._cache.name(sequence, 0, boundary // self._block_size - 1)

    def check_integrity(self, running: Sequence[SequenceState]) -> None:
        """Raise AssertionError if the rows disagree with those that running sequences hold."""
        held = [progress.row for progress in self._progress.values() if progress.row]
        assert len(held) == self._held <= self._most_held, f"{len(held)} rows are held, {self._held} counted"
        assert self._progress.keys() == set(running), "progress of a running sequence is lost, or kept of another one"
        for sequence, progress in self._progress.items():
            assert all(cut > sequence.computed for cut in progress.cuts), f"{sequence.request_id} has passed a cut"
        self.rows.check_integrity(held)
