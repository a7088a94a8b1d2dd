"""The prefix cache: names for full blocks, by which a later request finds what an earlier one computed.

A full block's name is the SHA-256 of the name before it and its own token ids. The first link is the tenant's
root, made from the salt; so a name stands for the whole prefix and the tenant, and two tenants meet only where a
256-bit hash collides. Names are made one by one, when they are first needed: a request that finds nothing has paid
for one hash, and each block it fills costs one more.

Where groups of layers have tables of their own, a prefix is found as far as all of them have what its next token
reads: all blocks of groups that see the whole context, and of a window the last ones. Where layers are recurrent, also
only as far as a snapshot goes: whole blocks then, for nobody can go on from amid one.
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
    """Blocks that follow each other in a group's table, the first of which has the number `first`."""

    first: int
    blocks: list[int]


class Hit(NamedTuple):
    """What was found for a sequence in all groups: whole blocks to share, and perhaps one more, of part of its tokens.

    The part, of one block a group, is used by taking the block over (when nobody else holds it) or by copying it.
    """

    tokens: int
    runs: list[Run]
    partial: list[int] | None

    @property
    def end(self) -> int:
        """The number of the block behind the whole ones."""
        return self.runs[0].first + len(self.runs[0].blocks)


Has = Callable[[bytes], object]
"""What is known of a name; None: nothing."""


class PrefixCache:
    """Finds and publishes the blocks of sequences in a pool, by name and group.

    In the first group a block's name is that of its prefix, and in the others it has the group's number behind it.
    `snapshots` are what recurrent layers need besides, None where there are none.
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
        """Where a tenant's chain of names begins."""
        return sha256(b"plimsoll/" + salt.encode()).digest()

    def begin_step(self) -> None:
        """Blocks published from now on are written in a new step."""
        self._fresh.clear()

    def match(self, sequence: SequenceState) -> Hit:
        """The longest prefix of the sequence's tokens, of those it may reuse, that all groups have in the pool.

        A block that is written in this very step may be shared, for a step writes all keys and values of a layer
        before it attends to any. It cannot be copied: copies come first.
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
        """Most blocks, up to `last`, that a sequence can begin with as all groups have what its next token reads."""
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
        """Most blocks, up to `last`, behind which recurrent layers can go on."""
        if self._snapshots is not None:
            while last and not self._snapshots.has(self.name(sequence, 0, last - 1)):
                last -= 1
        return last

    def seen(self, sequence: SequenceState, found: int) -> int:
        """How many of its blocks, more than the `found` ones, another sequence has had, by what the first group has."""
        last = self._last(sequence)
        while last > found and self._pool.find(self.name(sequence, 0, last - 1)) is None:
            last -= 1
        return max(last, found)

    def _full_end(self, sequence: SequenceState, last: int, has: Has) -> int:
        """As far as the groups go that need all blocks."""
        for group in self._full:
            for index in range(last):
                if has(self.name(sequence, group, index)) is None:
                    last = index
                    break
        return last

    def _missing(self, sequence: SequenceState, end: int, has: Has) -> int | None:
        """The last block that some group lacks of those that are read behind so many."""
        tokens, missing = min(end * self._block_size, sequence.reusable_tokens), -1
        for group in self._others:
            first = max(missing + 1, first_block(self._rules[group], tokens, self._block_size))
            for index in range(end - 1, first - 1, -1):
                if has(self.name(sequence, group, index)) is None:
                    missing = index
                    break
        return None if missing < 0 else missing

    def _runs(self, sequence: SequenceState, tokens: int, end: int) -> list[Run]:
        """The whole blocks before number `end` that are read behind so many tokens."""
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
        """How many of its blocks the sequence may reuse, of the last perhaps only a part."""
        if self._snapshots is not None:
            return sequence.reusable_tokens // self._block_size
        return min(-(-sequence.reusable_tokens // self._block_size), sequence.known // self._block_size)

    def reach(self, sequence: SequenceState, has: Has) -> int:
        """Like `agreed`, of all blocks that the sequence may reuse."""
        return self.agreed(sequence, self._last(sequence), has)

    def names_to(self, sequence: SequenceState, start: int, end: int) -> Iterator[bytes]:
        """The names of what all groups need of the blocks before number `end`: in full ones from number `start` on."""
        tokens = min(end * self._block_size, sequence.reusable_tokens)
        firsts = [first_block(rule, tokens, self._block_size) for rule in self._rules]
        firsts = [start if group in self._full else first for group, first in enumerate(firsts)]
        for index in range(min(firsts), end):
            for group, first in enumerate(firsts):
                if index >= first:
                    yield self.name(sequence, group, index)

    def full_reach(self, sequence: SequenceState, has: Has) -> int:
        """How far the groups go that need all blocks; without such groups, as far as the sequence may reuse any."""
        return self._full_end(sequence, self._last(sequence), has)

    def names(self, sequence: SequenceState, first: int) -> Iterator[bytes]:
        """Of a single group: names of the blocks, from number `first` on, of which the sequence may reuse a part."""
        return (self.name(sequence, 0, index) for index in range(first, self._last(sequence)))

    def next_blocks(self, sequence: SequenceState) -> list[int] | None:
        """The blocks, one a group, that the sequence would fill next, full, if it may reuse all of them.

        With recurrent layers none: its states are where it is, and nowhere else.
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
        """How many leading tokens the first group has, in whole blocks, looking from `tokens` on, as far as last time.

        After so many lookups it says how far it has come: the next call goes on from there.
        """
        size, find = self._block_size, self._pool.find
        count, last = tokens // size, sequence.reusable_tokens // size
        while count and lookups and find(self.name(sequence, 0, count - 1)) is None:
            count, lookups = count - 1, lookups - 1
        while count < last and lookups and find(self.name(sequence, 0, count)) is not None:
            count, lookups = count + 1, lookups - 1
        return count * size

    def publish(self, sequence: SequenceState, tokens: int) -> list[tuple[int, int, int]]:
        """Name the full blocks among the first `tokens`, all known and computed, that have no name yet.

        Returns (group, number, block with the same contents) for those whose contents had a block before.
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
        """Of all blocks of a sequence that have been named, in all groups."""
        return (name + suffix for name in sequence.kv.hashes[1:] for suffix in self._suffixes)

    def names_between(self, sequence: SequenceState, first: int, end: int) -> Iterator[bytes]:
        """The same of those with numbers from `first` to before `end`."""
        return (name + suffix for name in sequence.kv.hashes[1 + first : 1 + end] for suffix in self._suffixes)

    def name(self, sequence: SequenceState, group: int, index: int) -> bytes:
        """The name of a group's block with this number in the sequence; `hashes` starts with the root."""
        hashes = sequence.kv.hashes
        if len(hashes) < index + 2:
            self._name_blocks(sequence, index + 1)
        return hashes[index + 1] + self._suffixes[group]

    def _name_blocks(self, sequence: SequenceState, count: int) -> None:
        """Name the first `count` blocks. Those of a prompt are named once for all answers that are made of it."""
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
