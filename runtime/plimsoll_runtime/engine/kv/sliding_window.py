"""The groups that give blocks back, and what is kept for the sequences that still need some of them.

Their layers see a part of the context, so their tables lose blocks in front while they grow behind. A sequence gets
such blocks chunk by chunk, and gives back what fell out when the next chunk is planned: no earlier, for in a step
somebody else might write there before it is read. What it will still need for its prompt is promised to it, so that
nobody else is let in on its blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

from plimsoll_runtime.engine.kv.block_pool import BlockPool
from plimsoll_runtime.engine.kv.cache_groups import Full, Rule, first_block, peak_blocks
from plimsoll_runtime.engine.sequence import SequenceState


class Windows:
    """`groups`: the numbers of those that give blocks back. `promised`: the blocks kept for all sequences together."""

    def __init__(self, rules: Sequence[Rule], block_size: int, pool: BlockPool) -> None:
        self.groups = [group for group, rule in enumerate(rules) if not isinstance(rule, Full)]
        self.promised = 0
        self._rules = rules
        self._block_size = block_size
        self._pool = pool

    def trim(self, sequence: SequenceState) -> None:
        """Give back the blocks of which no step that is still to be planned reads anything."""
        for group in self.groups:
            table = sequence.tables[group]
            given = first_block(self._rules[group], sequence.computed, self._block_size) - table.first
            if given > 0:
                self._pool.release(table.give_back(given))
                sequence.told = False

    def promise(self, sequence: SequenceState, tokens: int) -> None:
        """Keep what a sequence still needs for what is known of it, once `tokens` tokens are computed.

        A block that others hold too is not free once it is given back, so another one is kept for it.
        """
        promised, size = 0, self._block_size
        if tokens < sequence.known:
            for group in self.groups:
                rule, table = self._rules[group], sequence.tables[group]
                kept = table.blocks[max(0, first_block(rule, tokens, size) - table.first) :]
                promised += max(0, peak_blocks(rule, tokens, sequence.known, size) - len(kept))
                promised += sum(self._pool.references(block) > 1 for block in kept)
        self.promised += promised - sequence.promised
        sequence.promised = promised

    def take_back(self, sequence: SequenceState) -> None:
        """Nothing is kept for the sequence any longer."""
        self.promised -= sequence.promised
        sequence.promised = 0

    def check_integrity(self, running: Sequence[SequenceState]) -> None:
        """Raises AssertionError where other blocks are counted than were promised."""
        assert self.promised == sum(sequence.promised for sequence in running), "promised blocks are miscounted"
