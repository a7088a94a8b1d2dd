"""The layout of the KV cache: which layers form a cache group, and where they are within a block."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from plimsoll_runtime.engine.kv.cache_groups import Chunked, Full, Rule, SlidingWindow, sequence_blocks
from plimsoll_runtime.models.spec.attention import AttentionShape


class LayerOffsets(NamedTuple):
    """`width`: elements of a token in a block, whichever group has it; `of`: those before each layer's own."""

    width: int
    of: tuple[int, ...]


def groups_of(shapes: Sequence[AttentionShape], groups: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The group of each layer. Raises ValueError for groups that these layers do not form."""
    if sorted(layer for group in groups for layer in group) != list(range(len(shapes))):
        raise ValueError(f"{len(shapes)} layers do not form the groups {groups}: each is in one of them")
    found = {layer: number for number, group in enumerate(groups) for layer in group}
    return tuple(found[layer] for layer in range(len(shapes)))


def layer_offsets(shapes: Sequence[AttentionShape], groups: Sequence[Sequence[int]]) -> LayerOffsets:
    """The places of layers; a block is as wide as the widest group."""
    of = [0] * len(shapes)
    width = 0
    for group in groups:
        end = 0
        for layer in group:
            of[layer] = end
            end += shapes[layer].cached_width
        width = max(width, end)
    return LayerOffsets(width, tuple(of))


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

    Layers of one rule that differ in what they keep of a token cannot form groups of equally many: then there is one
    group, of the rule that keeps most.
    """
    kinds: dict[Rule, list[int]] = {}
    for layer, shape in enumerate(shapes):
        kinds.setdefault(_rule(shape, longest, block_size), []).append(layer)
    if any(len({shapes[layer].cached_width for layer in layers}) > 1 for layers in kinds.values()):
        kinds = {_keeps_most(kinds): list(range(len(shapes)))}
        sizes = dict.fromkeys(kinds, len(shapes))
    else:
        sizes = _layers_together(shapes, kinds)
    parts = [
        (rule, tuple(layers[start : start + sizes[rule]]))
        for rule, layers in sorted(kinds.items(), key=lambda kind: not isinstance(kind[0], Full))
        for start in range(0, len(layers), sizes[rule])
    ]
    groups = tuple(layers for _, layers in parts)
    block_bytes = layer_offsets(shapes, groups).width * element_bytes * block_size
    return KvLayout(groups, tuple(rule for rule, _ in parts), block_size, block_bytes)


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


@dataclass(frozen=True, slots=True)
class _Kind:
    """Layers of one rule: how many there are, and what each keeps of a token, in elements."""

    rule: Rule
    layers: int
    width: int

    def together(self, block: int) -> int:
        """Layers of a group whose blocks have so many elements of a token."""
        return min(self.layers, block // self.width)

    def groups(self, block: int) -> int:
        """How many groups that makes."""
        return -(-self.layers // self.together(block))


def _layers_together(shapes: Sequence[AttentionShape], kinds: Mapping[Rule, Sequence[int]]) -> dict[Rule, int]:
    """Layers of a group of each rule: as many as make the fewest groups with no more than `UNUSED` of unused places.

    Where there is no such number, as many as leave least unused.
    """
    found = [_Kind(rule, len(layers), shapes[layers[0]].cached_width) for rule, layers in kinds.items()]
    least = max((kind.width for kind in found), default=0)
    sizes = {each for kind in found for n in range(1, kind.layers + 1) if (each := n * kind.width) >= least}

    def worth(size: int) -> tuple[float, int, float]:
        unused = _unused(found, size)
        return (unused if unused > UNUSED else 0.0, sum(kind.groups(size) for kind in found), unused)

    best = min(sorted(sizes), key=worth, default=0)
    return {kind.rule: kind.together(best) for kind in found}


def _unused(kinds: Iterable[_Kind], size: int) -> float:
    """Share of a sequence's blocks that no layer uses; of long ones full groups hold most."""

    def share(of: Sequence[_Kind]) -> float:
        used = sum(kind.layers * kind.width for kind in of)
        return 1 - used / (size * sum(kind.groups(size) for kind in of)) if of else 0.0

    every = list(kinds)
    return max(share(every), share([kind for kind in every if isinstance(kind.rule, Full)]))
