"""Which layers form a group of the cache, and how many share its memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from plimsoll_runtime.engine.groups.chunk import Chunked
from plimsoll_runtime.engine.groups.full import Full
from plimsoll_runtime.engine.groups.rule import Rule, sequence_blocks
from plimsoll_runtime.engine.groups.window import SlidingWindow
from plimsoll_runtime.execution.kv_places import kept_of, places_of
from plimsoll_runtime.models.spec.attention import AttentionShape

UNUSED = 0.05
"""So much of what a sequence holds may be places of a group that has fewer layers than others."""


@dataclass(frozen=True, slots=True)
class KvLayout:
    """The layers of each group, in order, and its rule; groups of full context come first.

    A block has `block_size` tokens and `block_bytes`, whichever group it belongs to.
    """

    groups: tuple[tuple[int, ...], ...]
    rules: tuple[Rule, ...]
    block_size: int
    block_bytes: int

    def sequence_bytes(self, tokens: int) -> int:
        """What a cache must have for one sequence that grows to so many tokens."""
        return sequence_blocks(self.rules, tokens, self.block_size) * self.block_bytes


def kv_layout(shapes: Sequence[AttentionShape], longest: int, block_size: int, element_bytes: int) -> KvLayout:
    """The groups of a decoder's cached layers, whose sequences have at most `longest` tokens.

    Of layers whose heads differ in number or size no two can share memory: then there is one group, of the rule that
    keeps most.
    """
    kinds: dict[Rule, list[int]] = {}
    for layer, shape in enumerate(shapes):
        kinds.setdefault(_rule(shape, longest, block_size), []).append(layer)
    if len(kinds) > 1 and len(set(map(kept_of, shapes))) > 1:
        kinds = {_keeps_most(kinds): list(range(len(shapes)))}
    size = _layers_together(kinds)
    parts = [
        (rule, tuple(layers[start : start + size]))
        for rule, layers in sorted(kinds.items(), key=lambda kind: not isinstance(kind[0], Full))
        for start in range(0, len(layers), size)
    ]
    groups = tuple(layers for _, layers in parts)
    _, places = places_of(shapes, groups)
    token_bytes = sum((1 if latent else 2) * heads * dims for heads, dims, latent in places.shapes) * element_bytes
    return KvLayout(groups, tuple(rule for rule, _ in parts), block_size, token_bytes * block_size)


def uniform_layout(block_size: int, token_bytes: int) -> KvLayout:
    """Of a decoder that keeps caches by itself: blocks of no layer, which hold nothing and are counted."""
    return KvLayout(((),), (Full(),), block_size, token_bytes * block_size)


def _rule(shape: AttentionShape, longest: int, block_size: int) -> Rule:
    """What a layer keeps. Slopes that go by where a token stands, and odd chunks, need the first tokens."""
    if shape.alibi is not None and shape.alibi.coarse:
        return Full()
    if shape.chunk is not None and shape.chunk < longest:
        return Full() if shape.chunk % block_size else Chunked(shape.chunk)
    if shape.window is not None and shape.window < longest:
        return SlidingWindow(shape.window)
    return Full()


def _keeps_most(rules: Collection[Rule]) -> Rule:
    windows = [rule for rule in rules if isinstance(rule, SlidingWindow)]
    return max(windows, key=lambda rule: rule.window) if len(windows) == len(rules) else Full()


def _layers_together(kinds: Mapping[Rule, Sequence[int]]) -> int:
    """Layers of a group: as many as make the fewest groups with no more than `UNUSED` of unused places."""
    most = max(map(len, kinds.values()), default=1)
    sizes = [size for size in range(1, most + 1) if _unused(kinds, size) <= UNUSED]
    return min(sizes, key=lambda size: (_groups(kinds, size), _unused(kinds, size)))


def _groups(kinds: Mapping[Rule, Sequence[int]], size: int) -> int:
    return sum(-(-len(layers) // size) for layers in kinds.values())


def _unused(kinds: Mapping[Rule, Sequence[int]], size: int) -> float:
    """Share of a sequence's blocks that no layer uses; of long ones full groups hold most."""

    def share(layers: Iterable[Sequence[int]]) -> float:
        counts = [len(each) for each in layers]
        return 1 - sum(counts) / (size * sum(-(-count // size) for count in counts)) if counts else 0.0

    return max(share(kinds.values()), share(layers for rule, layers in kinds.items() if isinstance(rule, Full)))
