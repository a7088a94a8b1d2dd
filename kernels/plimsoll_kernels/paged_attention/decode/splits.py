"""The number of programs among which the context of a decode is divided."""

from __future__ import annotations

MIN_SPLIT_TOKENS = 128
MAX_SPLITS = 64
WAVES = 2
"""Programs that a multiprocessor runs at once, limited by the memory for their tiles of keys and values."""


def decode_splits(programs: int, longest: int, processors: int, window: int | None = None) -> int:
    """Return a power of two: enough splits to fill the device, each with at least `MIN_SPLIT_TOKENS` of the longest
    context.

    programs: sequences x KV heads; longest: tokens of the longest context, of which at most `window` are read;
    processors: the device's multiprocessors. Only powers of two, because each number is a kernel (and in a CUDA graph a
    capture) of its own. Raises ValueError if a number is below one.
    """
    longest = min(longest, window or longest)
    if min(programs, longest, processors) < 1:
        raise ValueError(f"{programs} programs, {longest} tokens and {processors} processors: each must be at least 1")
    wanted = min(WAVES * processors // programs, longest // MIN_SPLIT_TOKENS, MAX_SPLITS)
    return 1 << (max(1, wanted).bit_length() - 1)


def split_lengths(most: int) -> list[int]:
    """Return lengths up to `most`, rising, between which the number of splits does not change, for any batch and
    device.

    The last is `most`; each of the others is the longest with its number of splits.
    """
    lengths, border = [], 2 * MIN_SPLIT_TOKENS
    while border <= min(most, MAX_SPLITS * MIN_SPLIT_TOKENS):
        lengths.append(border - 1)
        border *= 2
    return [*lengths, most]


def most_seen(window: int | None, chunk: int | None) -> int | None:
    """Return the most tokens that a row sees; None: all."""
    return min((size for size in (window, chunk) if size is not None), default=None)
