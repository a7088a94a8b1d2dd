"""The layout of the KV cache: which layers form a cache group, and their offsets within a block."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import NamedTuple

from plimsoll_runtime.engine.kv.cache_groups import Chunked, Full, Rule, SlidingWindow, sequence_blocks
from plimsoll_runtime.models.spec.attention import AttentionShape


class LayerOffsets(NamedTuple):
    """`width`: elements of a token in a block of any group; `of`: elements of a token before each layer's own."""

    width: int
    of: tuple[int, ...]


def groups_of(shapes: Sequence[AttentionShape], groups: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the group of each layer. Raises ValueError if the groups do not contain each layer once."""
    if sorted(layer for group in groups for layer in group) != list(range(len(shapes))):
        raise ValueError(f"{len(shapes)} layers do not form the groups {groups}; each layer must be in one group")
    found = {layer: number for number, group in enumerate(groups) for layer in group}
    return tuple(found[layer] for layer in range(len(shapes)))


def layer_offsets(shapes: Sequence[AttentionShape], groups: Sequence[Sequence[int]]) -> LayerOffsets:
    """Return the offsets of layers; a block is as wide as the widest group."""
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
"""The share of a sequence's memory that may be unused because a group has fewer layers than others."""


@dataclass(frozen=True, slots=True)
class KvLayout:
    """The layers of each group, in order, and its cache rule; groups of full context come first.

    A block has `block_size` tokens and `block_bytes`, whichever group it belongs to.
    """

    groups: tuple[tuple[int, ...], ...]
    rules: tuple[Rule, ...]
    block_size: int
    block_bytes: int

    def sequence_bytes(self, tokens: int) -> int:
        """Return the bytes of the cache for one sequence that grows to `tokens` tokens."""
        return sequence_blocks(self.rules, tokens, self.block_size) * self.block_bytes


def kv_layout(
    shapes: Sequence[AttentionShape],
    longest: int,
    block_size: int,
    element_bytes: int,
    stages: Sequence[Sequence[AttentionShape]] = (),
    stage: int = 0,
) -> KvLayout:
    """Return the groups of a decoder's cached layers, whose sequences have at most `longest` tokens.

    If layers of one rule differ in the size of a token, groups of equally many layers are impossible: then there is one
    group, with the rule that keeps most. `stages`, `stage`: see `program.Facts`. All stages of a pipeline have the same
    groups; each has a part of a group's layers, which may be none.
    """
    if not stages:
        return _layout(shapes, _groups(shapes, longest, block_size), block_size, element_bytes)
    first = sum(map(len, stages[:stage]))
    parts: list[_Group] = []
    every = _groups([shape for of_stage in stages for shape in of_stage], longest, block_size)
    for rule, of_rule in groupby(every, key=lambda group: group[0]):
        groups = [layers for _, layers in of_rule]
        own = [layer - first for layers in groups for layer in layers if 0 <= layer - first < len(shapes)]
        cuts = [number * len(own) // len(groups) for number in range(len(groups) + 1)]
        parts += [(rule, tuple(own[begin:end])) for begin, end in pairwise(cuts)]
    return _layout(shapes, parts, block_size, element_bytes)


_Group = tuple[Rule, tuple[int, ...]]


def _layout(shapes: Sequence[AttentionShape], parts: Sequence[_Group], block_size: int, element_bytes: int) -> KvLayout:
    groups = tuple(layers for _, layers in parts)
    block_bytes = layer_offsets(shapes, groups).width * element_bytes * block_size
    return KvLayout(groups, tuple(rule for rule, _ in parts), block_size, block_bytes)


def _groups(shapes: Sequence[AttentionShape], longest: int, block_size: int) -> list[_Group]:
    """Return the rule and the layers of each group; groups of one rule follow each other."""
    kinds: dict[Rule, list[int]] = {}
    for layer, shape in enumerate(shapes):
        kinds.setdefault(_rule(shape, longest, block_size), []).append(layer)
    if any(len({shapes[layer].cached_width for layer in layers}) > 1 for layers in kinds.values()):
        kinds = {_keeps_most(kinds): list(range(len(shapes)))}
        sizes = dict.fromkeys(kinds, len(shapes))
    else:
        sizes = _layers_together(shapes, kinds)
    return [
        (rule, tuple(layers[start : start + sizes[rule]]))
        for rule, layers in sorted(kinds.items(), key=lambda kind: not isinstance(kind[0], Full))
        for start in range(0, len(layers), sizes[rule])
    ]


def uniform_layout(block_size: int, token_bytes: int) -> KvLayout:
    """Return the layout of a decoder that has caches of its own: blocks without layers, which are only counted."""
    return KvLayout(((),), (Full(),), block_size, token_bytes * block_size)


def _rule(shape: AttentionShape, longest: int, block_size: int) -> Rule:
    """Return the cache rule of a layer. ALiBi by absolute position, and chunks that do not fit blocks, need all
    tokens.
    """
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
    """Layers of one rule: their number, and the elements that each keeps of a token."""

    rule: Rule
    layers: int
    width: int

    def together(self, block: int) -> int:
        """Return how many of these layers a group has if its blocks have `block` elements for each token."""
        return min(self.layers, block // self.width)

    def groups(self, block: int) -> int:
        """Return the number of groups of these layers if their blocks have `block` elements for each token."""
        return -(-self.layers // self.together(block))


def _layers_together(shapes: Sequence[AttentionShape], kinds: Mapping[Rule, Sequence[int]]) -> dict[Rule, int]:
    """Return the number of layers of a group for each rule: the fewest groups that leave at most `UNUSED` of the memory
    unused.

    If no block size achieves this, it is the one that leaves least unused.
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
    """Return the share of a sequence's blocks that no layer uses.

    It is the larger one of two: the share of all groups, and that of the groups with full context, which have most
    blocks of a long sequence.
    """

    def share(of: Sequence[_Kind]) -> float:
        used = sum(kind.layers * kind.width for kind in of)
        return 1 - used / (size * sum(kind.groups(size) for kind in of)) if of else 0.0

    every = list(kinds)
    return max(share(every), share([kind for kind in every if isinstance(kind.rule, Full)]))
