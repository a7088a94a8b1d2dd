"""Among how many programs the context of a decode is divided."""

from __future__ import annotations

MIN_SPLIT_TOKENS = 128
MAX_SPLITS = 64
WAVES = 2
"""Programs that a multiprocessor holds at once: what their tiles of keys and values leave room for."""


def decode_splits(programs: int, longest: int, processors: int, window: int | None = None) -> int:
    """A power of two: enough to fill the device, and so few that each has `MIN_SPLIT_TOKENS` of the longest context.

    programs: sequences x KV heads; longest: tokens of the longest context, of which `window` are read at most;
    processors: the device's multiprocessors. Only powers of two, since each is a kernel (and in a CUDA graph a capture)
    of its own. Raises ValueError for less than one of anything.
    """
    longest = min(longest, window or longest)
    if min(programs, longest, processors) < 1:
        raise ValueError(f"{programs} programs, {longest} tokens and {processors} processors: each must be at least 1")
    wanted = min(WAVES * processors // programs, longest // MIN_SPLIT_TOKENS, MAX_SPLITS)
    return 1 << (max(1, wanted).bit_length() - 1)


def split_lengths(most: int) -> list[int]:
    """In rising order, lengths up to `most` between which the number of splits does not change, whatever else it is of.

    The last is `most`, those before it are the longest with their number.
    """
    lengths, border = [], 2 * MIN_SPLIT_TOKENS
    while border <= min(most, MAX_SPLITS * MIN_SPLIT_TOKENS):
        lengths.append(border - 1)
        border *= 2
    return [*lengths, most]


def most_seen(window: int | None, chunk: int | None) -> int | None:
    """How many tokens a row sees at most; None: all."""
    return min((size for size in (window, chunk) if size is not None), default=None)
