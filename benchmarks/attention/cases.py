"""Typical serving steps on the shapes of two models."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from plimsoll_runtime.models.spec.attention import AttentionShape

SMALL = AttentionShape(heads=12, kv_heads=4, head_dim=64, scale=64**-0.5)
GEMMA = AttentionShape(heads=4, kv_heads=1, head_dim=256, scale=256**-0.5)
GEMMA_WINDOW = AttentionShape(heads=4, kv_heads=1, head_dim=256, scale=256**-0.5, window=512)


@dataclass(frozen=True, slots=True)
class Case:
    """One step. `lengths`: for each sequence, its rows (tokens to compute) and its cached tokens after the step."""

    name: str
    shape: AttentionShape
    lengths: Sequence[tuple[int, int]]

    @property
    def pairs(self) -> int:
        """Number of pairs of a row and a token that it attends to."""
        window = self.shape.window or 1 << 60
        return sum(min(p + 1, window) for rows, context in self.lengths for p in range(context - rows, context))

    @property
    def flops(self) -> int:
        """Floating-point operations of one layer: scores, and weighted sums of values."""
        return 4 * self.shape.heads * self.shape.head_dim * self.pairs

    def bytes(self, itemsize: int) -> int:
        """Bytes of keys and values that one layer must read, each once. With a sliding window, tokens outside it do not
        count.
        """
        window = self.shape.window or 1 << 60
        tokens = sum(min(context, window + rows - 1) for rows, context in self.lengths)
        return 2 * self.shape.kv_heads * self.shape.head_dim * itemsize * tokens


def _decode(count: int, low: int, high: int) -> list[tuple[int, int]]:
    chosen = random.Random(0)
    return [(1, chosen.randint(low, high)) for _ in range(count)]


CASES = [
    Case("small: decode 1, context 192", SMALL, [(1, 192)]),
    Case("small: decode 1, context 2048", SMALL, [(1, 2048)]),
    Case("small: decode 64, context 16-512", SMALL, _decode(64, 16, 512)),
    Case("small: decode 64 and a chunk of 256", SMALL, [*_decode(64, 16, 512), (256, 256)]),
    Case("small: 16 prompts of 16-256", SMALL, [(n, n) for _, n in _decode(16, 16, 256)]),
    Case("small: prompt of 1024", SMALL, [(1024, 1024)]),
    Case("small: 64 x 16 own tokens after 512", SMALL, [(16, 528)] * 64),
    Case("small: chunk of 512 after 2048", SMALL, [(512, 2560)]),
    Case("gemma: decode 1, context 512", GEMMA, [(1, 512)]),
    Case("gemma: decode 16, context 16-512", GEMMA, _decode(16, 16, 512)),
    Case("gemma: decode 16, context 2048-4096", GEMMA, _decode(16, 2048, 4096)),
    Case("gemma window: decode 16, context 2048-4096", GEMMA_WINDOW, _decode(16, 2048, 4096)),
    Case("gemma: prompt of 2048", GEMMA, [(2048, 2048)]),
    Case("gemma window: prompt of 2048", GEMMA_WINDOW, [(2048, 2048)]),
]
