"""The cache rules (full, sliding window, chunk), and how many blocks a sequence holds under them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Full(msgspec.Struct, frozen=True, tag="full"):
    """Every token is kept as long as its sequence runs."""

    def oldest(self, position: int) -> int:
        """The first token that the query at a position sees."""
        return 0


class Chunked(msgspec.Struct, frozen=True, tag="chunk"):
    """A query sees from the last multiple of `chunk` on. It is a multiple of a block's tokens.

    So what is given back is a whole number of chunks, and those of what is left begin where they did.
    """

    chunk: int

    @property
    def behind(self) -> int:
        """Tokens before its own that a query sees at most."""
        return self.chunk - 1

    def oldest(self, position: int) -> int:
        """The first token that the query at a position sees, and so the first that any later one does."""
        return position // self.chunk * self.chunk


class SlidingWindow(msgspec.Struct, frozen=True, tag="window"):
    """A query sees `window` tokens, itself included."""

    window: int

    @property
    def behind(self) -> int:
        """Tokens before its own that a query sees at most."""
        return self.window - 1

    def oldest(self, position: int) -> int:
        """The first token that the query at a position sees, and so the first that any later one does."""
        return max(0, position - self.window + 1)


Rule = Full | SlidingWindow | Chunked
"""What a group of layers keeps of a sequence: one of these."""

ONE_FULL: tuple[Rule, ...] = (Full(),)
"""The groups of a model whose layers all see the whole context."""

NOTHING_READ: tuple[Rule, ...] = (SlidingWindow(1),)
"""The group of a model in which no layer attends: its blocks have no bytes, and only say what was computed."""

LEAST_CHUNK = 4
"""So many blocks of a prompt can be computed in a step however full the cache is, once its sequence is let in."""


def first_block(rule: Rule, position: int, block_size: int) -> int:
    """The first block that the query at a position, or a later one, reads.

    Under every rule, what a query sees begins no earlier than what the one before it saw. So blocks are freed from the
    front of a table, and a table is the number of its first block and the blocks from there on.
    """
    return rule.oldest(position) // block_size


def peak_blocks(rule: Rule, computed: int, tokens: int, block_size: int) -> int:
    """Most blocks that a group needs at once to bring a sequence from `computed` tokens to `tokens`, chunk by chunk."""
    whole = -(-tokens // block_size)
    if isinstance(rule, Full):
        return whole
    # The first token that is seen may be the last of its block.
    at_once = -(-(rule.behind + LEAST_CHUNK * block_size - 1) // block_size) + 1
    return min(whole - first_block(rule, computed, block_size), at_once)


def sequence_blocks(rules: Sequence[Rule], tokens: int, block_size: int) -> int:
    """Blocks of all groups that a cache needs for a sequence which grows to so many tokens."""
    return sum(peak_blocks(rule, 0, tokens, block_size) for rule in rules)


def longest_within(rules: Sequence[Rule], blocks: int, block_size: int, limit: int) -> int:
    """Most tokens, up to `limit`, of a sequence that needs no more than so many blocks."""
    fits, beyond = 0, limit + 1
    while beyond - fits > 1:
        middle = (fits + beyond) // 2
        if sequence_blocks(rules, middle, block_size) <= blocks:
            fits = middle
        else:
            beyond = middle
    return fits
