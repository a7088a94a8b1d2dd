"""Cache groups that release blocks while a sequence runs, and the blocks reserved for its remaining prompt.

Layers of these groups attend to a part of the context, so their block tables shrink at the front while they grow at the
end. A sequence gets these blocks chunk by chunk, and releases unneeded ones when the next chunk is planned; not
earlier, because another sequence could overwrite them in the same step. The blocks that it still needs for its prompt
are reserved, so that no other sequence is admitted on them.
"""

from __future__ import annotations

from collections.abc import Sequence

from plimsoll_runtime.engine.kv.block_pool import BlockPool
from plimsoll_runtime.engine.kv.cache_groups import Full, Rule, first_block, peak_blocks
from plimsoll_runtime.engine.sequence import SequenceState


class Windows:
    """Releases and reserves blocks in the cache groups that release blocks while a sequence runs.

    `groups`: the numbers of these cache groups. `reserved`: blocks reserved for all sequences together.
    """

    def __init__(self, rules: Sequence[Rule], block_size: int, pool: BlockPool) -> None:
        self.groups = [group for group, rule in enumerate(rules) if not isinstance(rule, Full)]
        self.reserved = 0
        self._rules = rules
        self._block_size = block_size
        self._pool = pool

    def trim(self, sequence: SequenceState) -> None:
        """Release the blocks that no future step reads."""
        for group in self.groups:
            table = sequence.kv.tables[group]
            given = first_block(self._rules[group], sequence.computed, self._block_size) - table.first
            if given > 0:
                self._pool.release(table.give_back(given))
                sequence.kv.tables_sent = False

    def reserve(self, sequence: SequenceState, tokens: int) -> None:
        """Reserve the blocks that a sequence needs for its known tokens after `tokens` of them are computed.

        A shared block does not become free when it is released, so another one is reserved for it.
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
        """Raise AssertionError if `reserved` differs from the sum over running sequences."""
        assert self.reserved == sum(sequence.kv.reserved for sequence in running), "reserved blocks are miscounted"
