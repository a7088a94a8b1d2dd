"""Groups decodes whose block tables begin alike, if reading those blocks once saves more than it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plimsoll_kernels.paged_attention.decode.splits import MAX_SPLITS, MIN_SPLIT_TOKENS
from plimsoll_kernels.paged_attention.prefix.tiles import tile_members
from plimsoll_runtime.models.spec.attention import AttentionShape

LAUNCH_BYTES = 2**24
"""Bytes that a device reads in the time of the launch that sharing adds to each layer: 5 microseconds of an H100's 3.35
TB/s, guessed.
"""

_FLOAT = 4
_WRITTEN_AND_READ = 2


@dataclass(frozen=True, slots=True)
class Worth:
    """Memory traffic of a layer's decodes in bytes, averaged over the layers of a cache group.

    token: of a token's keys and values. partial: of one split's sums for a sequence, written and read. members: the
    number of sequences for which a tile reads a block once. seen: the most tokens of its sequence that a row sees, in
    the layer that sees the fewest; None: all of them.
    """

    token: float
    partial: float
    members: int
    seen: int | None = None

    @classmethod
    def of(cls, shapes: Sequence[AttentionShape], itemsize: int) -> Worth | None:
        """Return the costs of these layers; None if they never share: with latent attention, if a layer sees at most
        MIN_SPLIT_TOKENS tokens, or without layers.
        """
        seen = min((shape.most_seen for shape in shapes if shape.most_seen is not None), default=None)
        if not shapes or any(shape.latent for shape in shapes) or (seen is not None and seen <= MIN_SPLIT_TOKENS):
            return None
        sums = [shape.heads * (shape.head_dim + 2) * _FLOAT * _WRITTEN_AND_READ for shape in shapes]
        return cls(
            token=sum(shape.cached_width * itemsize for shape in shapes) / len(shapes),
            partial=sum(sums) / len(shapes),
            members=min(tile_members(shape.head_dim, shape.heads // shape.kv_heads, itemsize) for shape in shapes),
            seen=seen,
        )

    def once(self, tokens: int) -> float:
        """Return the bytes of a prefix of `tokens` tokens, which its group reads once."""
        return tokens * self.token

    def member(self, tokens: int) -> float:
        """Return the bytes that one member of a group saves; the group's own reading (`once`) is not subtracted.

        A member reads its share of the group's tiles, each of which reads the prefix again (mostly from the device's
        cache, although this counts as memory traffic here). Its sums of every split are written and read.
        """
        splits = min(-(-tokens // MIN_SPLIT_TOKENS), MAX_SPLITS)
        return tokens * self.token * (1 - 1 / self.members) - splits * self.partial


MOST_GROUPS = 8
"""The most groups of a step; those that save most are kept. Each adds a program for every KV head and split to a
launch, even to one whose step has fewer groups.
"""

Blocks = NDArray[np.int32]


class SharedPrefix(NamedTuple):
    """Sequences of a batch, at least two in rising order, whose tables have the same first `blocks` blocks."""

    members: tuple[int, ...]
    blocks: int


def fewest_blocks(block_size: int) -> int:
    """Return the fewest blocks of a shared prefix, those of one split: a smaller split is not worth a program."""
    return -(-MIN_SPLIT_TOKENS // block_size)


def shared_prefixes(
    tables: Sequence[Blocks], numbers: Sequence[int], block_size: int, worth: Worth
) -> tuple[SharedPrefix, ...]:
    """Return the groups of sequences that save most bytes, each sequence in one at most; none if they save less than a
    launch costs.

    numbers: the decodes' indices in the batch, rising. tables: for each of them, its blocks before the one of its own
    token.
    """
    found = _chosen(_tree(tables, numbers, block_size), block_size, worth)
    groups = [SharedPrefix(tuple(sorted(members)), depth) for depth, members in found]
    kept = sorted(groups, key=lambda group: -saved(group, block_size, worth))[:MOST_GROUPS]
    total = sum(saved(group, block_size, worth) for group in kept)
    return tuple(sorted(kept)) if total > LAUNCH_BYTES else ()


def saved(group: SharedPrefix, block_size: int, worth: Worth) -> float:
    """Return the bytes of a layer that a group saves: those not read less those written and read in addition."""
    tokens = group.blocks * block_size
    return len(group.members) * worth.member(tokens) - worth.once(tokens)


@dataclass(slots=True)
class _Node:
    """A shared prefix of `depth` blocks: the sequences that share no longer prefix, and the longer prefixes within.

    together: for each depth that the nearest enclosing group may have (0: no such group), the most bytes that the
    node's sequences can save, and whether a group of the node's own depth saves them.
    """

    depth: int
    parent: _Node | None = None
    sequences: list[int] = field(default_factory=list)
    parts: list[_Node] = field(default_factory=list)
    together: dict[int, tuple[float, bool]] = field(default_factory=dict)


def _tree(tables: Sequence[Blocks], numbers: Sequence[int], block_size: int) -> list[_Node]:
    """Return the shared prefixes of the tables as the nodes of a tree: children before parents, the root last. Sorting
    puts tables with common prefixes next to each other.
    """
    order = sorted(range(len(tables)), key=lambda i: tables[i].tobytes())
    fewest, open_, closed = fewest_blocks(block_size), [_Node(0)], list[_Node]()
    for place, index in enumerate(order):
        depth = _alike(tables[index], tables[order[place + 1]]) if place + 1 < len(order) else 0
        depth = depth if depth >= fewest else 0
        if depth > open_[-1].depth:
            open_.append(_Node(depth))
        open_[-1].sequences.append(numbers[index])
        while open_[-1].depth > depth:
            part = open_.pop()
            if open_[-1].depth < depth:
                open_.append(_Node(depth))
            part.parent = open_[-1]
            part.parent.parts.append(part)
            closed.append(part)
    return [*closed, open_[0]]


def _chosen(tree: Sequence[_Node], block_size: int, worth: Worth) -> list[tuple[int, list[int]]]:
    """Return depth and members of the best groups.

    A node's sequences that are in no group of its children are members of the nearest enclosing group, if any. So the
    best choice for a node depends on that group's depth only.
    """

    def members_save(count: int, depth: int) -> float:
        return count * max(0.0, worth.member(depth * block_size)) if depth else 0.0

    def best(node: _Node, depth: int) -> float:
        return members_save(len(node.sequences), depth) + sum(part.together[depth][0] for part in node.parts)

    *nodes, root = tree
    for node in nodes:
        own, around = best(node, node.depth) - worth.once(node.depth * block_size), node.parent
        while around is not None:
            apart = best(node, around.depth)
            node.together[around.depth] = (max(own, apart), own > apart)
            around = around.parent
    groups: list[tuple[int, list[int]]] = []
    nobody: list[int] = []
    waiting = [(part, 0, nobody) for part in root.parts]
    while waiting:
        node, depth, members = waiting.pop()
        if node.together[depth][1]:
            depth, members = node.depth, []
            groups.append((depth, members))
        members += node.sequences
        waiting += [(part, depth, members) for part in node.parts]
    return groups


def _alike(one: Blocks, other: Blocks) -> int:
    """Return the number of equal blocks with which two tables begin."""
    length = min(len(one), len(other))
    differ = one[:length] != other[:length]
    return int(differ.argmax()) if differ.any() else length
