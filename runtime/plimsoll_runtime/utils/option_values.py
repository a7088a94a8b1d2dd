"""Converts words of the command line into option values, or raises an error that says what to write instead."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Iterable

from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.utils.sizes import is_share, parse_size

LIMIT = 2**31
ONE_TIB = 2**40


class OptionError(UsageError, ArgumentTypeError):
    """A word is not a valid value. As argparse's own error type, its message follows the name of the flag."""


def whole(text: str, low: int, high: int) -> int:
    """Convert an integer between `low` and `high`, inclusive."""
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        raise OptionError(f"{text[:64]!r} is not an integer")
    value = int(text)
    if not low <= value <= high:
        raise OptionError(f"{value} is not between {low} and {high}")
    return value


def positive(text: str) -> int:
    """Convert an integer of at least 1."""
    return whole(text, 1, LIMIT)


def count(text: str) -> int:
    """Convert an integer of at least 0."""
    return whole(text, 0, LIMIT)


def port(text: str) -> int:
    """Convert a TCP port; 0 lets the system choose one."""
    return whole(text, 0, 65535)


def one_of(text: str, choices: Iterable[int]) -> int:
    """Convert an integer that is one of `choices`."""
    value = positive(text)
    if value not in choices:
        raise OptionError(f"{value} is not one of {', '.join(map(str, choices))}")
    return value


def seconds(text: str, least: float = 0.0) -> float:
    """Convert a duration in seconds, at least `least` and at most a day."""
    try:
        value = float(text)
    except ValueError:
        raise OptionError(f"{text!r} is not a number of seconds") from None
    if not 0 <= value <= 86_400:
        raise OptionError(f"{text} is not between 0 and 86400 seconds")
    if value < least:
        raise OptionError(f"{text} is less than {least:g} seconds")
    return value


def number(text: str) -> float:
    """Convert a number from 0 to 1,000,000 that has no unit."""
    try:
        value = float(text)
    except ValueError:
        raise OptionError(f"{text!r} is not a number") from None
    if not 0 <= value <= 1_000_000:
        raise OptionError(f"{text} is not between 0 and 1000000")
    return value


def switch(text: str) -> bool:
    """Return whether an environment variable is "1"."""
    return text == "1"


def words(text: str) -> list[str]:
    """Split words at commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def amount(text: str) -> int:
    """Convert an absolute amount of memory to bytes; 0 is allowed."""
    if text.strip() == "0":
        return 0
    if is_share(text):
        raise OptionError(f"{text!r} is a share; write an amount like 2GiB")
    return parse_size(memory(text), 0)


def amount_text(size: int) -> str:
    """Return bytes in the notation of `amount`, in the largest unit that divides them.

    >>> amount_text(64 * 2**20), amount_text(1000)
    ('64MiB', '1000')
    """
    unit = next((unit for unit in ("TiB", "GiB", "MiB", "KiB") if size and size % parse_size(f"1{unit}", 0) == 0), "")
    return f"{size // parse_size(f'1{unit}', 0)}{unit}"


def share(text: str) -> float:
    """Convert a share such as 50% to a number up to 1."""
    if not is_share(text):
        raise OptionError(f"{text[:64]!r} is not a share; write one like 50%")
    return parse_size(memory(text), ONE_TIB) / ONE_TIB


def memory(text: str) -> str:
    """Return an amount of memory, absolute or a share, as text, because the free memory is known only later. Raises
    OptionError for any other text.
    """
    try:
        parse_size(text, ONE_TIB)
    except UsageError as error:
        raise OptionError(str(error)) from None
    return text.strip()


def path(text: str) -> str:
    """Return a path unchanged; it need not exist. Raises OptionError if it is empty or has a NUL character."""
    if not text.strip() or "\0" in text:
        raise OptionError("it must be a path")
    return text


def word(text: str) -> str:
    """Return a name or a key unchanged. Raises OptionError unless it has 1 to 256 characters, none of them a space or
    control character.
    """
    if not text or len(text) > 256 or any(c.isspace() or not c.isprintable() for c in text):
        raise OptionError(f"{text[:64]!r} must be 1 to 256 printable characters without spaces")
    return text
