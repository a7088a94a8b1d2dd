"""Where layers lie that share a cache's memory: the n-th layers of all groups in the n-th place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from plimsoll_runtime.models.spec.attention import AttentionShape


class Places(NamedTuple):
    """`shapes`: what the layers of each place have in common (`kept_of`); `of`: the place of each layer."""

    shapes: tuple[tuple[int, int, bool], ...]
    of: tuple[int, ...]


def kept_of(shape: AttentionShape) -> tuple[int, int, bool]:
    """What layers that share memory have in common: KV heads, their size, and whether keys are values as well."""
    return shape.kv_heads, shape.head_dim, shape.latent


def places_of(shapes: Sequence[AttentionShape], groups: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], Places]:
    """The group of each layer, and the places. Raises ValueError for groups that layers of these shapes cannot form."""
    if sorted(layer for group in groups for layer in group) != list(range(len(shapes))):
        raise ValueError(f"{len(shapes)} layers do not form the groups {groups}: each is in one of them")
    of, group_of = [0] * len(shapes), [0] * len(shapes)
    kept: dict[int, tuple[int, int, bool]] = {}
    for number, group in enumerate(groups):
        for place, layer in enumerate(group):
            of[layer], group_of[layer] = place, number
            heads = kept_of(shapes[layer])
            if kept.setdefault(place, heads) != heads:
                raise ValueError(
                    f"layer {layer} has other heads {heads} than {kept[place]}, and is to share its memory"
                )
    return tuple(group_of), Places(tuple(kept[place] for place in range(len(kept))), tuple(of))
