"""Prefixes in the tiers: prefetched for waiting sequences, and restored by the step that admits them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from plimsoll_runtime.engine.kv.block_pool import PADDING_BLOCK, BlockPool
from plimsoll_runtime.engine.kv.cache_groups import Rule, first_block
from plimsoll_runtime.engine.kv.offload.costs import Prospect
from plimsoll_runtime.engine.kv.offload.index import Prefetch, TierIndex
from plimsoll_runtime.engine.kv.prefix_cache import Hit, PrefixCache, Run
from plimsoll_runtime.engine.sequence import SequenceState


class _Outlook(NamedTuple):
    """Blocks beyond the prefix hit that a waiting sequence could get from the tiers: their hashes (`names`), how many
    are ready or can be read, and how many of them to hold in host memory (`wanted`).
    """

    names: Iterable[bytes]
    prospect: Prospect
    wanted: int


class TieredPrefixes:
    """The tiers below a pool and its prefix cache. Without a `cache` nothing is found in them.

    `prefetches` are those of waiting sequences. `asked` has the waiting sequences for which `prefetch` has been called.
    `restored_tokens` counts the tokens that admitted sequences got from the tiers.
    """

    def __init__(
        self, index: TierIndex, pool: BlockPool, cache: PrefixCache | None, rules: Sequence[Rule], block_size: int
    ) -> None:
        self.index = index
        self._pool = pool
        self._cache = cache
        self._rules = rules
        self._block_size = block_size
        self.prefetches: dict[SequenceState, Prefetch] = {}
        self.asked: set[SequenceState] = set()
        self.restored_tokens = 0

    def prefetch(self, sequence: SequenceState) -> bool:
        """Start to read the blocks of a waiting sequence's prefix from disk; return whether it must wait for them.

        A sequence has at most one prefetch until `end_prefetch`. Blocks that are missing at admission are computed, and
        so are blocks that are predicted to be computed faster than read.
        """
        outlook, again = self._outlook(sequence), sequence in self.asked
        self.asked.add(sequence)
        if outlook is None:
            return False
        names, prospect, wanted = outlook
        if (prefetch := self.index.prefetch(islice(names, wanted))) is not None:
            self.prefetches[sequence] = prefetch
        elif wanted < prospect.ready + prospect.gained and not again:
            self.index.pass_over(prospect)
        return prefetch is not None

    def would_prefetch(self, sequence: SequenceState) -> bool:
        """Return whether `prefetch` would make the sequence wait, if the tiers are not polled in between."""
        outlook = self._outlook(sequence)
        return outlook is not None and outlook.wanted > outlook.prospect.ready

    def end_prefetch(self, sequence: SequenceState) -> None:
        """Release the prefetch of a sequence that is admitted or removed."""
        self.asked.discard(sequence)
        if (prefetch := self.prefetches.pop(sequence, None)) is not None:
            self.index.end_prefetch(prefetch)

    def extend(self, sequence: SequenceState, hit: Hit) -> tuple[Hit, list[int]]:
        """Extend a hit by the blocks in host memory; return it with the frames to restore them from.

        The padding block marks each block that a frame will fill.
        """
        index, cache, size = self.index, self._cache, self._block_size
        if cache is None or hit.partial is not None or not index.frames_used:
            return hit, []
        find, limit = self._pool.find, sequence.reusable_tokens

        def has(name: bytes) -> int | None:
            return index.find(name) if (block := find(name)) is None else block

        end = cache.reach(sequence, has)
        if end * size > limit and any(find(cache.name(sequence, g, end - 1)) for g in range(len(self._rules))):
            # Only a part of the last block is used, and a sequence that writes the rest must not share the block.
            end = cache.agreed(sequence, end - 1, has)
        if end <= hit.end:
            return hit, []
        tokens, runs, frames = min(end * size, limit), [], []
        for group, rule in enumerate(self._rules):
            run = Run(first_block(rule, tokens, size), [])
            for number in range(run.first, end):
                name = cache.name(sequence, group, number)
                block = find(name)
                run.blocks.append(PADDING_BLOCK if block is None else block)
                if block is None and (frame := index.find(name)) is not None:
                    frames.append(frame)
            runs.append(run)
        self.restored_tokens += tokens - hit.tokens
        return Hit(tokens, runs, None), frames

    def over(self, spills: Sequence[tuple[int, int]], restores: Sequence[tuple[int, int]]) -> None:
        """Report a finished step that moved these blocks."""
        if spills or restores:
            self.index.moved([frame for _, frame in spills], [frame for frame, _ in restores])

    def _outlook(self, sequence: SequenceState) -> _Outlook | None:
        """Look up a waiting sequence's prefix in the tiers; None if the disk is empty, or it has a prefetch already."""
        index = self.index
        if self._cache is None or sequence in self.prefetches or not index.disk_used:
            return None
        names, tokens = self._names_behind(self._cache, sequence)
        prospect = index.prospect(names)
        return _Outlook(names, prospect, index.costs.choose(prospect, tokens, again=sequence in self.asked))

    def _names_behind(self, cache: PrefixCache, sequence: SequenceState) -> tuple[Sequence[bytes], int]:
        """Return the hashes of blocks beyond the prefix hit that a sequence could use, and the tokens that each saves.

        They are in the order of its tokens. In sliding-window groups, only blocks that are read after the last one
        count.
        """
        index, find, size, hit = self.index, self._pool.find, self._block_size, cache.match(sequence)
        if hit.partial is not None:
            return (), size
        end = cache.full_reach(sequence, lambda name: index.state(name) if (b := find(name)) is None else b)
        names = [name for name in cache.names_to(sequence, hit.end, end) if find(name) is None]
        return names, max(1, (end - hit.end) * size // max(1, len(names)))
