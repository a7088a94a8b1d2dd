"""What it saves, and what it costs, to read blocks once for several decodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from plimsoll_kernels.paged_attention.decode.splits import MAX_SPLITS, MIN_SPLIT_TOKENS
from plimsoll_kernels.paged_attention.prefix.tiles import tile_members
from plimsoll_runtime.models.spec.attention import AttentionShape

LAUNCH_BYTES = 2**24
"""What a device reads in the time of the one launch more: 5 microseconds of an H100's 3.35 TB/s, guessed."""

_FLOAT = 4
_WRITTEN_AND_READ = 2


@dataclass(frozen=True, slots=True)
class Worth:
    """Bytes of memory that a layer's decodes read and write, the average of a group of the cache.

    token: of a token's keys and values. partial: of one split's sums for a sequence, which are written and read again.
    members: how many sequences a block is read for at once. seen: tokens that a row sees of its sequence at most, of
    the layer that sees the fewest; None: all of them.
    """

    token: float
    partial: float
    members: int
    seen: int | None = None

    @classmethod
    def of(cls, shapes: Sequence[AttentionShape], itemsize: int) -> Worth | None:
        """Of these layers; None where they never share: latent vectors are read by a kernel that does not."""
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
        """What a group reads of its prefix, however many it has."""
        return tokens * self.token

    def member(self, tokens: int) -> float:
        """What a member saves, before the group's own reading.

        It reads nothing of the prefix but its part of the group's tiles, each of which reads the prefix anew (most of
        it from the device's cache, which is not counted in its favour). Its sums of every split are written and read.
        """
        splits = min(-(-tokens // MIN_SPLIT_TOKENS), MAX_SPLITS)
        return tokens * self.token * (1 - 1 / self.members) - splits * self.partial
