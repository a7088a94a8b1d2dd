"""Where layers lie that share a cache's memory: the n-th layers of all groups in the n-th place, or each in a block's
own order where their heads differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from plimsoll_runtime.models.spec.attention import AttentionShape


class Places(NamedTuple):
    """`shapes`: what the layers of each place have in common (`kept_of`); `of`: the place of each layer."""

    shapes: tuple[tuple[int, int, bool], ...]
    of: tuple[int, ...]


class Offsets(NamedTuple):
    """`width`: elements of a token in a block, whichever group has it; `of`: those before each layer's keys."""

    width: int
    of: tuple[int, ...]


def kept_of(shape: AttentionShape) -> tuple[int, int, bool]:
    """What layers that share memory have in common: KV heads, their size, and whether keys are values as well."""
    return shape.kv_heads, shape.head_dim, shape.latent


def groups_of(shapes: Sequence[AttentionShape], groups: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The group of each layer. Raises ValueError for groups that these layers do not form."""
    if sorted(layer for group in groups for layer in group) != list(range(len(shapes))):
        raise ValueError(f"{len(shapes)} layers do not form the groups {groups}: each is in one of them")
    found = {layer: number for number, group in enumerate(groups) for layer in group}
    return tuple(found[layer] for layer in range(len(shapes)))


def places_of(shapes: Sequence[AttentionShape], groups: Sequence[Sequence[int]]) -> Places | None:
    """The places; None where heads differ within one."""
    of = [0] * len(shapes)
    kept: dict[int, tuple[int, int, bool]] = {}
    for group in groups:
        for place, layer in enumerate(group):
            of[layer] = place
            heads = kept_of(shapes[layer])
            if kept.setdefault(place, heads) != heads:
                return None
    return Places(tuple(kept[place] for place in range(len(kept))), tuple(of))


def offsets_of(shapes: Sequence[AttentionShape], groups: Sequence[Sequence[int]]) -> Offsets:
    """Where layers lie in a block whose groups' heads differ: one behind the other, each group from the start on.

    A layer begins at a multiple of its head's size, so that its rows are numbered through the whole memory. Raises
    ValueError for keys that are values as well.
    """
    if any(shape.latent for shape in shapes):
        raise ValueError("keys that are values as well cannot share memory with other heads")
    of = [0] * len(shapes)
    ends = [0]
    for group in groups:
        end = 0
        for layer in group:
            size = shapes[layer].head_dim
            of[layer] = -(-end // size) * size
            end = of[layer] + shapes[layer].cached_width
        ends.append(end)
    return Offsets(whole_heads(shapes, max(ends)), tuple(of))


def whole_heads(shapes: Sequence[AttentionShape], width: int) -> int:
    """So many elements, or more, that heads of every size fill."""
    unit = math.lcm(*(shape.head_dim for shape in shapes))
    return -(-width // unit) * unit
