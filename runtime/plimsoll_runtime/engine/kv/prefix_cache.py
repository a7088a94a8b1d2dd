"""The prefix cache: finds full KV blocks that earlier requests computed, by the hash of their tokens.

The name of a full block is its block hash: the SHA-256 of its parent's name and its own token ids. The chain begins
with the tenant's root, made from the salt. So a name identifies the whole prefix and the tenant, and two tenants share
a block only if a 256-bit hash collides. Names are computed when first needed: a request without a hit costs one hash,
and one more for each block that it fills.

With several cache groups, a prefix hit is the longest prefix after which every group has the blocks that the next token
reads: all blocks in groups of full attention, the last ones in sliding-window groups. With recurrent layers the hit
must also end at a state snapshot, and contains whole blocks only.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from typing import NamedTuple

from plimsoll_runtime.engine.kv.block_pool import BlockPool
from plimsoll_runtime.engine.kv.cache_groups import ONE_FULL, Full, Rule, first_block
from plimsoll_runtime.engine.kv.snapshot_pool import SnapshotRows
from plimsoll_runtime.engine.sequence import SequenceState


class Run(NamedTuple):
    """Consecutive blocks of a group's block table; `first` is the number of the first one."""

    first: int
    blocks: list[int]


class Hit(NamedTuple):
    """A prefix hit in all groups: whole blocks to share, and possibly one more block of which only a part is used.

    The partial block (one for each group) is taken over if no other sequence holds it, else copied.
    """

    tokens: int
    runs: list[Run]
    partial: list[int] | None

    @property
    def end(self) -> int:
        """The number of the block after the whole ones."""
        return self.runs[0].first + len(self.runs[0].blocks)


Has = Callable[[bytes], object]
"""Looks up a block hash; returns None if no block has it."""


class PrefixCache:
    """Finds and publishes the blocks of sequences in a pool, by block hash and cache group.

    In group 0 a block's name is its block hash; in other groups the group's number is appended. `snapshots` are the
    state snapshots of recurrent layers; None: the model has none.
    """

    def __init__(
        self,
        pool: BlockPool,
        block_size: int,
        rules: Sequence[Rule] = ONE_FULL,
        snapshots: SnapshotRows | None = None,
    ) -> None:
        self._pool = pool
        self._snapshots = snapshots
        self._block_size = block_size
        self._rules = rules
        self._suffixes = [bytes((group,)) if group else b"" for group in range(len(rules))]
        self._full = [g for g, rule in enumerate(rules) if isinstance(rule, Full)]
        self._others = [g for g, rule in enumerate(rules) if not isinstance(rule, Full)]
        self._fresh: set[int] = set()

    @staticmethod
    def root(salt: str) -> bytes:
        """Return the root of a tenant's chain of block hashes."""
        return sha256(b"plimsoll/" + salt.encode()).digest()

    def begin_step(self) -> None:
        """Start a new step: blocks published from here on are written by it."""
        self._fresh.clear()

    def match(self, sequence: SequenceState) -> Hit:
        """Return the longest prefix of the sequence's reusable tokens that all groups have in the pool.

        A block that is written in the step being planned can be shared, because a step writes all keys and values of a
        layer before it attends to any. It cannot be copied, because copies come first.
        """
        size, limit, find = self._block_size, sequence.reusable_tokens, self._pool.find
        end = self.agreed(sequence, self._last(sequence), find)
        if end * size > limit:
            partial = [self._found(sequence, group, end - 1) for group in range(len(self._rules))]
            if self._fresh.isdisjoint(partial):
                return Hit(limit, self._runs(sequence, limit, end - 1), partial)
            end = self.agreed(sequence, end - 1, find)
        return Hit(end * size, self._runs(sequence, end * size, end), None)

    def agreed(self, sequence: SequenceState, last: int, has: Has) -> int:
        """Return the length in blocks, at most `last`, of the longest prefix after which every group has the blocks
        that the next token reads (and a state snapshot exists, with recurrent layers).
        """
        last = self._full_end(sequence, last, has)
        while last:
            lower = self._missing(sequence, last, has)
            if lower is None:
                lower = self._remembered(sequence, last)
            if lower == last:
                break
            last = lower
        return last

    def _remembered(self, sequence: SequenceState, last: int) -> int:
        """Return the most blocks, up to `last`, after which a state snapshot exists."""
        if self._snapshots is not None:
            while last and not self._snapshots.has(self.name(sequence, 0, last - 1)):
                last -= 1
        return last

    def seen(self, sequence: SequenceState, found: int) -> int:
        """Return how many of a sequence's blocks group 0 has, at least `found`: the part shared with an earlier
        sequence.
        """
        last = self._last(sequence)
        while last > found and self._pool.find(self.name(sequence, 0, last - 1)) is None:
            last -= 1
        return max(last, found)

    def _full_end(self, sequence: SequenceState, last: int, has: Has) -> int:
        """Return how many blocks, up to `last`, all groups of full attention have."""
        for group in self._full:
            for index in range(last):
                if has(self.name(sequence, group, index)) is None:
                    last = index
                    break
        return last

    def _missing(self, sequence: SequenceState, end: int, has: Has) -> int | None:
        """Return the highest number of a block before `end` that the next token reads in a group without full attention
        and that does not exist; None if all exist.
        """
        tokens, missing = min(end * self._block_size, sequence.reusable_tokens), -1
        for group in self._others:
            first = max(missing + 1, first_block(self._rules[group], tokens, self._block_size))
            for index in range(end - 1, first - 1, -1):
                if has(self.name(sequence, group, index)) is None:
                    missing = index
                    break
        return None if missing < 0 else missing

    def _runs(self, sequence: SequenceState, tokens: int, end: int) -> list[Run]:
        """Return each group's whole blocks before number `end` that are read after `tokens` tokens."""
        runs = []
        for group, rule in enumerate(self._rules):
            first = min(first_block(rule, tokens, self._block_size), end)
            runs.append(Run(first, [self._found(sequence, group, index) for index in range(first, end)]))
        return runs

    def _found(self, sequence: SequenceState, group: int, index: int) -> int:
        block = self._pool.find(self.name(sequence, group, index))
        assert block is not None
        return block

    def _last(self, sequence: SequenceState) -> int:
        """Return how many blocks the sequence may reuse; the last may be usable only in part."""
        if self._snapshots is not None:
            return sequence.reusable_tokens // self._block_size
        return min(-(-sequence.reusable_tokens // self._block_size), sequence.known // self._block_size)

    def reach(self, sequence: SequenceState, has: Has) -> int:
        """Return the length in blocks of the longest prefix that the sequence can reuse, if `has` finds the blocks."""
        return self.agreed(sequence, self._last(sequence), has)

    def names_to(self, sequence: SequenceState, start: int, end: int) -> Iterator[bytes]:
        """Yield the hashes of blocks before `end` that each group needs; with full attention, those from `start` on."""
        tokens = min(end * self._block_size, sequence.reusable_tokens)
        firsts = [first_block(rule, tokens, self._block_size) for rule in self._rules]
        firsts = [start if group in self._full else first for group, first in enumerate(firsts)]
        for index in range(min(firsts), end):
            for group, first in enumerate(firsts):
                if index >= first:
                    yield self.name(sequence, group, index)

    def full_reach(self, sequence: SequenceState, has: Has) -> int:
        """Return how many leading blocks all groups of full attention have; without such groups, how many blocks
        the sequence may reuse.
        """
        return self._full_end(sequence, self._last(sequence), has)

    def next_blocks(self, sequence: SequenceState) -> list[int] | None:
        """Return, for each group, the published block that has the contents of the next block to compute.

        Return None if a group has none, or if the sequence must compute a token of it. With recurrent layers always
        return None: the sequence's states cannot skip ahead.
        """
        if self._snapshots is not None:
            return None
        index = sequence.computed // self._block_size
        if index != sequence.kv.published or (index + 1) * self._block_size > sequence.reusable_tokens:
            return None
        found = []
        for group in range(len(self._rules)):
            block = self._pool.find(self.name(sequence, group, index))
            if block is None:
                return None
            found.append(block)
        return found

    def probe(self, sequence: SequenceState, tokens: int, lookups: int) -> int:
        """Return how many leading tokens group 0 has in whole blocks, searching from the last result, `tokens`.

        Stops after `lookups` lookups; the next call continues from the result.
        """
        size, find = self._block_size, self._pool.find
        count, last = tokens // size, sequence.reusable_tokens // size
        while count and lookups and find(self.name(sequence, 0, count - 1)) is None:
            count, lookups = count - 1, lookups - 1
        while count < last and lookups and find(self.name(sequence, 0, count)) is not None:
            count, lookups = count + 1, lookups - 1
        return count * size

    def publish(self, sequence: SequenceState, tokens: int) -> list[tuple[int, int, int]]:
        """Publish the full blocks among the first `tokens` tokens, which must be known and computed.

        Return (group, number, other block) for each block whose contents had been published as another block.
        """
        duplicates, kv = [], sequence.kv
        for index in range(kv.published, tokens // self._block_size):
            for group, table in enumerate(kv.tables):
                if index < table.first:
                    continue
                block = table.blocks[index - table.first]
                bearer = self._pool.publish(block, self.name(sequence, group, index))
                if bearer == block:
                    self._fresh.add(block)
                else:
                    duplicates.append((group, index, bearer))
            kv.published = index + 1
        return duplicates

    def all_names(self, sequence: SequenceState) -> Iterator[bytes]:
        """Yield the block hashes of a sequence that have been computed, for all groups."""
        return (name + suffix for name in sequence.kv.hashes[1:] for suffix in self._suffixes)

    def names_between(self, sequence: SequenceState, first: int, end: int) -> Iterator[bytes]:
        """Yield the hashes of blocks `first` .. `end` - 1 that have been computed, for all groups."""
        return (name + suffix for name in sequence.kv.hashes[1 + first : 1 + end] for suffix in self._suffixes)

    def name(self, sequence: SequenceState, group: int, index: int) -> bytes:
        """Return the hash of a group's block with this number in the sequence; computes missing hashes."""
        hashes = sequence.kv.hashes
        if len(hashes) < index + 2:
            self._name_blocks(sequence, index + 1)
        return hashes[index + 1] + self._suffixes[group]

    def _name_blocks(self, sequence: SequenceState, count: int) -> None:
        """Compute the hashes of the first `count` blocks, for prompt blocks once for all sequences of the prompt."""
        names, size = sequence.kv.hashes, self._block_size
        shared = sequence.prompt.names(names[0], size)
        names += shared[len(names) - 1 : count]
        in_prompt = sequence.prompt_len // size
        for index in range(len(names) - 1, count):
            tokens = array("I", sequence.tokens(index * size, (index + 1) * size))
            name = sha256(names[-1] + tokens.tobytes()).digest()
            names.append(name)
            if index < in_prompt:
                shared.append(name)
