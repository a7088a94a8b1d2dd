"""Sizes, times and long texts as the laptop's commands print them: short, for a column."""

from __future__ import annotations

MARK = "..."
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def size_text(number: float) -> str:
    """Bytes for people.

    >>> size_text(7 * 2**20), size_text(3 * 2**29)
    ('7 MiB', '1.5 GiB')
    """
    return f"{number / 2**20:.0f} MiB" if number < 2**30 else f"{number / 2**30:.1f} GiB"


def gib_text(number: int) -> str:
    """Bytes in GiB, however few: in a sentence that compares several.

    >>> gib_text(2**29)
    '0.5 GiB'
    """
    return f"{number / 2**30:.1f} GiB"


def duration_text(seconds: float) -> str:
    """Seconds for people, rounded down.

    >>> duration_text(0.4), duration_text(300), duration_text(7200), duration_text(200_000)
    ('0 s', '5 min', '2 h', '2 days')
    """
    whole = max(0, int(seconds))
    if whole < 2 * _MINUTE:
        return f"{whole} s"
    if whole < 2 * _HOUR:
        return f"{whole // _MINUTE} min"
    return f"{whole // _HOUR} h" if whole < 2 * _DAY else f"{whole // _DAY} days"


def cut(text: str, width: int) -> str:
    """The text, its end cut and marked where it has more than `width` characters.

    >>> cut("gemma-3-270m", 8), cut("gemma", 8)
    ('gemma...', 'gemma')
    """
    return text if len(text) <= width else text[: width - len(MARK)] + MARK
