"""Plans a step on a CPU: which rows are computed together, over how many tokens. Computes with integers only.

Each sequence is cut into segments of at most `MAX_QUERIES` rows. A segment attends to the tokens up to its last row, so
a long chunk costs half of its square, and a windowed one only its band. Segments of similar size share a tile: one
gather and a few batched matrix products, padded to the tile's largest segment. A segment joins a tile only if the saved
calls cost more than the added padding.

Sizes are rounded up to a few classes. oneDNN compiles a product for each new shape (0.5 to 1 ms, measured) and keeps
the last 1,024 of them: without classes, decodes whose contexts grow would compile at every step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from plimsoll_runtime.models.spec.attention import AttentionShape

MAX_QUERIES, MIN_QUERIES = 128, 16
"""The bounds of `longest_segment`, in rows: MAX_QUERIES at short contexts, halved down to MIN_QUERIES at long ones, so
that scores stay in the CPU's cache.
"""
QUERY_CLASSES = (1, 2, 4, 8, 16, 32, 64, 128)
COUNT_CLASSES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
MIN_TOKENS = 64
CLASSES_PER_OCTAVE = 8
TILE_BYTES = 2**20
"""The most bytes of keys that a tile of several segments gathers: they stay in the second-level cache until they are
multiplied.
"""
TILE_SCORES = 2**19
"""The most scores of a tile of several segments, over all heads: 2 MiB in float32."""
TILE_OVERHEAD = 25.0
"""Microseconds that a tile's calls take at any size (dispatch, waking the threads)."""
GATHERED_BYTES_PER_US = 20_000.0
"""Bytes of cached keys and values that are gathered and multiplied in a microsecond (20 GB/s)."""
SCORES_PER_US = 1_500.0
"""Scores that are computed, normalised and applied in a microsecond, at head size 64."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows `row` .. `row + queries - 1` of the step; the last one has the position `context - 1` in the sequence with
    the index `sequence`.
    """

    sequence: int
    row: int
    queries: int
    context: int

    def first_token(self, shape: AttentionShape) -> int:
        """Return the first position that any of the rows sees."""
        return shape.first_seen(self.context - self.queries)


@dataclass(frozen=True, slots=True)
class TilePlan:
    """Segments computed together as if each had `queries` rows and `width` blocks. The last one may be repeated, so
    that their number is one of a few classes.
    """

    segments: tuple[Segment, ...]
    queries: int
    width: int


@dataclass(frozen=True, slots=True)
class TileCosts:
    """The cost of tiles of one attention shape in microseconds, and the limits of their size."""

    shape: AttentionShape
    per_token: float
    per_score: float
    max_tokens: int
    max_scores: int
    segment_scores: int

    @classmethod
    def of(cls, shape: AttentionShape, itemsize: int) -> TileCosts:
        """Return the costs for cache elements of `itemsize` bytes."""
        key_bytes = shape.kv_heads * shape.head_dim * itemsize
        return cls(
            shape=shape,
            per_token=2 * key_bytes / GATHERED_BYTES_PER_US,
            per_score=shape.heads * max(1.0, shape.head_dim / 64) / SCORES_PER_US,
            max_tokens=TILE_BYTES // key_bytes,
            max_scores=TILE_SCORES // shape.heads,
            segment_scores=TILE_SCORES * shape.kv_heads // shape.heads,
        )

    def microseconds(self, queries: int, tokens: int) -> float:
        """Return the microseconds that a tile takes for each of its segments of `queries` rows over `tokens` tokens,
        padding included.
        """
        return tokens * (self.per_token + queries * self.per_score)

    def fits(self, count: int, queries: int, tokens: int) -> bool:
        """Return whether the keys and scores of `count` segments stay in the CPU's cache while a tile is computed."""
        return count * tokens <= self.max_tokens and count * queries * tokens <= self.max_scores

    def longest_segment(self, tokens: int) -> int:
        """Return the most rows of a segment over `tokens` tokens: as many as keep one KV head's scores in the CPU's
        cache, but at least MIN_QUERIES.
        """
        longest = MAX_QUERIES
        while longest > MIN_QUERIES and longest * tokens > self.segment_scores:
            longest //= 2
        return longest


@dataclass(frozen=True, slots=True)
class _Sized:
    """A segment with the size classes of its rows and tokens."""

    queries: int
    tokens: int
    segment: Segment


def plan_tiles(
    query_lens: Sequence[int], context_lens: Sequence[int], block_size: int, costs: TileCosts
) -> list[TilePlan]:
    """Cut the sequences into segments and join those of similar size into tiles, the largest first."""
    sized = [_size(s, block_size, costs.shape) for s in cut_segments(query_lens, context_lens, costs)]
    sized.sort(key=lambda s: (s.queries, s.tokens), reverse=True)
    tiles: list[TilePlan] = []
    start = 0
    while start < len(sized):
        count, tokens = _joined(sized, start, costs)
        segments = [s.segment for s in sized[start : start + count]]
        segments += segments[-1:] * (_count_class(count) - count)
        tiles.append(TilePlan(tuple(segments), sized[start].queries, -(-tokens // block_size)))
        start += count
    return tiles


def cut_segments(query_lens: Sequence[int], context_lens: Sequence[int], costs: TileCosts) -> Iterator[Segment]:
    """Yield the segments of every sequence, in the order of their rows."""
    row = 0
    for sequence, (queries, context) in enumerate(zip(query_lens, context_lens, strict=True)):
        most = costs.shape.most_seen
        longest = costs.longest_segment(context if most is None else min(context, most + MAX_QUERIES))
        for done in range(0, queries, longest):
            length = min(longest, queries - done)
            yield Segment(sequence, row + done, length, context - queries + done + length)
        row += queries


def _size(segment: Segment, block_size: int, shape: AttentionShape) -> _Sized:
    first_block = segment.first_token(shape) // block_size
    tokens = segment.context - first_block * block_size
    return _Sized(_query_class(segment.queries), _token_class(tokens), segment)


def _joined(sized: Sequence[_Sized], start: int, costs: TileCosts) -> tuple[int, int]:
    """Return how many segments from `start` on make one tile, and the tokens of the longest. `sized` is sorted by rows,
    the most first.
    """
    queries, tokens = sized[start].queries, sized[start].tokens
    alone = costs.microseconds(queries, tokens)
    for count in range(1, len(sized) - start):
        own = sized[start + count]
        longest = max(tokens, own.tokens)
        alone += costs.microseconds(own.queries, own.tokens)
        waste = (count + 1) * costs.microseconds(queries, longest) - alone
        if waste > TILE_OVERHEAD or not costs.fits(_count_class(count + 1), queries, longest):
            return count, tokens
        tokens = longest
    return len(sized) - start, tokens


@lru_cache(None)
def _query_class(queries: int) -> int:
    return next(c for c in QUERY_CLASSES if c >= queries)


@lru_cache(4096)
def _token_class(tokens: int) -> int:
    """Round `tokens` up to one of eight sizes in each octave."""
    if tokens <= MIN_TOKENS:
        return MIN_TOKENS
    octave = 1 << ((tokens - 1).bit_length() - 1)
    step = octave // CLASSES_PER_OCTAVE
    return -(-tokens // step) * step


@lru_cache(None)
def _count_class(count: int) -> int:
    largest = COUNT_CLASSES[-1]
    return next((c for c in COUNT_CLASSES if c >= count), -(-count // largest) * largest)
