"""Where a cache's layers lie within a block: those of a group one behind the other, each group from its start on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from plimsoll_runtime.models.spec.attention import AttentionShape


class Places(NamedTuple):
    """`width`: elements of a token in a block, whichever group has it; `of`: those before each layer's own."""

    width: int
    of: tuple[int, ...]


def groups_of(shapes: Sequence[AttentionShape], groups: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The group of each layer. Raises ValueError for groups that these layers do not form."""
    if sorted(layer for group in groups for layer in group) != list(range(len(shapes))):
        raise ValueError(f"{len(shapes)} layers do not form the groups {groups}: each is in one of them")
    found = {layer: number for number, group in enumerate(groups) for layer in group}
    return tuple(found[layer] for layer in range(len(shapes)))


def places_of(shapes: Sequence[AttentionShape], groups: Sequence[Sequence[int]]) -> Places:
    """The places of layers; a block is as wide as the widest group."""
    of = [0] * len(shapes)
    width = 0
    for group in groups:
        end = 0
        for layer in group:
            of[layer] = end
            end += shapes[layer].cached_width
        width = max(width, end)
    return Places(width, tuple(of))
