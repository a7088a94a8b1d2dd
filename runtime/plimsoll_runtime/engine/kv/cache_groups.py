"""The cache rules (full, sliding window, chunk), and the number of blocks that a sequence needs under them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Full(msgspec.Struct, frozen=True, tag="full"):
    """Keeps every token as long as its sequence runs."""

    def oldest(self, position: int) -> int:
        """Return 0: a query at any position attends from the first token on."""
        return 0


class Chunked(msgspec.Struct, frozen=True, tag="chunk"):
    """Keeps the current attention chunk: a query attends from the last multiple of `chunk` on.

    `chunk` is a multiple of the block size, so blocks are released by whole chunks, and the remaining chunks stay
    aligned.
    """

    chunk: int

    @property
    def behind(self) -> int:
        """Most tokens before its own that a query attends to."""
        return self.chunk - 1

    def oldest(self, position: int) -> int:
        """Return the first token that a query at this position, or any later one, attends to."""
        return position // self.chunk * self.chunk


class SlidingWindow(msgspec.Struct, frozen=True, tag="window"):
    """Keeps a sliding window: a query attends to `window` tokens, its own included."""

    window: int

    @property
    def behind(self) -> int:
        """Most tokens before its own that a query attends to."""
        return self.window - 1

    def oldest(self, position: int) -> int:
        """Return the first token that a query at this position, or any later one, attends to."""
        return max(0, position - self.window + 1)


Rule = Full | SlidingWindow | Chunked
"""The tokens of a sequence that a cache group keeps."""

ONE_FULL: tuple[Rule, ...] = (Full(),)
"""The cache groups of a model in which every layer attends to the whole context."""

NOTHING_READ: tuple[Rule, ...] = (SlidingWindow(1),)
"""The cache group of a model without attention. Its blocks have no bytes and only record which tokens are computed."""

LEAST_CHUNK = 4
"""Blocks of a prompt that one step can always compute once the sequence is admitted, however full the cache is."""


def first_block(rule: Rule, position: int, block_size: int) -> int:
    """Return the number of the first block that the query at a position, or any later one, reads.

    Under every rule the first token read never moves back. So blocks are released from the front of a block table, and
    a table is the number of its first block and the list of blocks from there on.
    """
    return rule.oldest(position) // block_size


def peak_blocks(rule: Rule, computed: int, tokens: int, block_size: int) -> int:
    """Return the most blocks that a group needs at a time to compute the tokens from `computed` to before `tokens`, in
    chunks of LEAST_CHUNK blocks.
    """
    whole = -(-tokens // block_size)
    if isinstance(rule, Full):
        return whole
    # The first token that is read may be the last of its block.
    at_once = -(-(rule.behind + LEAST_CHUNK * block_size - 1) // block_size) + 1
    return min(whole - first_block(rule, computed, block_size), at_once)


def sequence_blocks(rules: Sequence[Rule], tokens: int, block_size: int) -> int:
    """Return the most blocks that all groups together need for a sequence that grows to this many tokens."""
    return sum(peak_blocks(rule, 0, tokens, block_size) for rule in rules)


def longest_within(rules: Sequence[Rule], blocks: int, block_size: int, limit: int) -> int:
    """Return the length, up to `limit` tokens, of the longest sequence that needs at most `blocks` blocks."""
    fits, beyond = 0, limit + 1
    while beyond - fits > 1:
        middle = (fits + beyond) // 2
        if sequence_blocks(rules, middle, block_size) <= blocks:
            fits = middle
        else:
            beyond = middle
    return fits
