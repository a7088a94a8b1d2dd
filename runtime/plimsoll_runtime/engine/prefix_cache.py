"""The prefix cache: names for full blocks, by which a later request finds what an earlier one computed.

A full block's name is the SHA-256 of the name before it and its own token ids. The first link is the tenant's
root, made from the salt; so a name stands for the whole prefix and the tenant, and two tenants meet only where a
256-bit hash collides. Names are made one by one, when they are first needed: a request that finds nothing has paid
for one hash, and each block it fills costs one more.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from hashlib import sha256
from typing import NamedTuple

from plimsoll_runtime.engine.block_pool import BlockPool
from plimsoll_runtime.engine.sequence import SequenceState


class Hit(NamedTuple):
    """What was found for a sequence: whole blocks to share, and perhaps one more of which only a part may be used.

    The part is used by taking the block over (when nobody else holds it) or by copying it.
    """

    tokens: int
    blocks: list[int]
    partial: int | None


class PrefixCache:
    """Finds and publishes the blocks of sequences in a pool."""

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self._pool = pool
        self._block_size = block_size
        self._fresh: set[int] = set()

    @staticmethod
    def root(salt: str) -> bytes:
        """Where a tenant's chain of names begins."""
        return sha256(b"plimsoll/" + salt.encode()).digest()

    def begin_step(self) -> None:
        """Blocks published from now on are written in a new step."""
        self._fresh.clear()

    def match(self, sequence: SequenceState) -> Hit:
        """The longest prefix of the sequence's tokens that is in the pool, of those it may reuse.

        A block that is written in this very step may be shared, for a step writes all keys and values of a layer
        before it attends to any. It cannot be copied: copies come first.
        """
        size, limit = self._block_size, sequence.reusable_tokens
        last_full = sequence.known // size
        blocks: list[int] = []
        for index in range(min(-(-limit // size), last_full)):
            block = self._pool.find(self._name(sequence, index))
            if block is None:
                break
            blocks.append(block)
        if len(blocks) * size <= limit:
            return Hit(len(blocks) * size, blocks, None)
        partial = blocks.pop()
        if partial in self._fresh:
            return Hit(len(blocks) * size, blocks, None)
        return Hit(limit, blocks, partial)

    def names(self, sequence: SequenceState, first: int) -> Iterator[bytes]:
        """The names of the blocks, from index `first` on, of which the sequence may reuse at least a part."""
        last = min(-(-sequence.reusable_tokens // self._block_size), sequence.known // self._block_size)
        return (self._name(sequence, index) for index in range(first, last))

    def next_block(self, sequence: SequenceState) -> int | None:
        """The block that the sequence would fill next, full, if it may reuse all of it."""
        index = sequence.computed // self._block_size
        if index != sequence.published or (index + 1) * self._block_size > sequence.reusable_tokens:
            return None
        return self._pool.find(self._name(sequence, index))

    def probe(self, sequence: SequenceState, tokens: int, lookups: int) -> int:
        """How many leading tokens are in the pool, in whole blocks, looking from `tokens` on, where it was last time.

        After so many lookups it says how far it has come: the next call goes on from there.
        """
        size, find = self._block_size, self._pool.find
        count, last = tokens // size, sequence.reusable_tokens // size
        while count and lookups and find(self._name(sequence, count - 1)) is None:
            count, lookups = count - 1, lookups - 1
        while count < last and lookups and find(self._name(sequence, count)) is not None:
            count, lookups = count + 1, lookups - 1
        return count * size

    def publish(self, sequence: SequenceState, tokens: int) -> list[tuple[int, int]]:
        """Name the full blocks among the first `tokens`, all known and computed, that have no name yet.

        Returns (index in its block table, block with the same contents) for those whose contents had a block before.
        """
        duplicates = []
        for index in range(sequence.published, tokens // self._block_size):
            block = sequence.block_ids[index]
            bearer = self._pool.publish(block, self._name(sequence, index))
            if bearer == block:
                self._fresh.add(block)
            else:
                duplicates.append((index, bearer))
            sequence.published = index + 1
        return duplicates

    def _name(self, sequence: SequenceState, index: int) -> bytes:
        """The name of the block at this index of the sequence's block table; `names` starts with the root."""
        if len(sequence.names) < index + 2:
            self._name_blocks(sequence, index + 1)
        return sequence.names[index + 1]

    def _name_blocks(self, sequence: SequenceState, count: int) -> None:
        """Name the first `count` blocks. Those of a prompt are named once for all answers that are made of it."""
        names, size = sequence.names, self._block_size
        shared = sequence.prompt.names(names[0], size)
        names += shared[len(names) - 1 : count]
        in_prompt = sequence.prompt_len // size
        for index in range(len(names) - 1, count):
            tokens = array("I", sequence.tokens(index * size, (index + 1) * size))
            name = sha256(names[-1] + tokens.tobytes()).digest()
            names.append(name)
            if index < in_prompt:
                shared.append(name)
