"""The groups that give blocks back, and what is kept for the sequences that still need some of them.

Their layers see a part of the context, so their tables lose blocks in front while they grow behind. A sequence gets
such blocks chunk by chunk, and gives back what fell out when the next chunk is planned: no earlier, for in a step
somebody else might write there before it is read. What it will still need for its prompt is reserved for it, so that
nobody else is let in on its blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

from plimsoll_runtime.engine.kv.block_pool import BlockPool
from plimsoll_runtime.engine.kv.cache_groups import Full, Rule, first_block, peak_blocks
from plimsoll_runtime.engine.sequence import SequenceState


class Windows:
    """`groups`: the numbers of those that give blocks back. `reserved`: the blocks kept for all sequences together."""

    def __init__(self, rules: Sequence[Rule], block_size: int, pool: BlockPool) -> None:
        self.groups = [group for group, rule in enumerate(rules) if not isinstance(rule, Full)]
        self.reserved = 0
        self._rules = rules
        self._block_size = block_size
        self._pool = pool

    def trim(self, sequence: SequenceState) -> None:
        """Give back the blocks of which no step that is still to be planned reads anything."""
        for group in self.groups:
            table = sequence.kv.tables[group]
            given = first_block(self._rules[group], sequence.computed, self._block_size) - table.first
            if given > 0:
                self._pool.release(table.give_back(given))
                sequence.kv.tables_sent = False

    def reserve(self, sequence: SequenceState, tokens: int) -> None:
        """Keep what a sequence still needs for what is known of it, once `tokens` tokens are computed.

        A block that others hold too is not free once it is given back, so another one is kept for it.
        """
        reserved, size, kv = 0, self._block_size, sequence.kv
        if tokens < sequence.known:
            for group in self.groups:
                rule, table = self._rules[group], kv.tables[group]
                kept = table.blocks[max(0, first_block(rule, tokens, size) - table.first) :]
                reserved += max(0, peak_blocks(rule, tokens, sequence.known, size) - len(kept))
                reserved += sum(self._pool.references(block) > 1 for block in kept)
        self.reserved += reserved - kv.reserved
        kv.reserved = reserved

    def check_integrity(self, running: Sequence[SequenceState]) -> None:
        """Raises AssertionError where other blocks are counted than are reserved."""
        assert self.reserved == sum(sequence.kv.reserved for sequence in running), "reserved blocks are miscounted"
