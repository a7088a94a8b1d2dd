"""Option values: each function turns a word of the command line into a value or says what to write instead."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Iterable

from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.utils.sizes import is_share, parse_size

LIMIT = 2**31
ONE_TIB = 2**40


class OptionError(UsageError, ArgumentTypeError):
    """A word is no value of the option. As argparse's own error, its message follows the name of the flag."""


def whole(text: str, low: int, high: int) -> int:
    """A whole number between two others, both allowed."""
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        raise OptionError(f"{text[:64]!r} is not a whole number")
    value = int(text)
    if not low <= value <= high:
        raise OptionError(f"{value} is not between {low} and {high}")
    return value


def positive(text: str) -> int:
    """A whole number from 1 up."""
    return whole(text, 1, LIMIT)


def count(text: str) -> int:
    """A whole number, zero allowed."""
    return whole(text, 0, LIMIT)


def port(text: str) -> int:
    """A TCP port; 0 lets the system choose one."""
    return whole(text, 0, 65535)


def one_of(text: str, choices: Iterable[int]) -> int:
    """One of some whole numbers."""
    value = positive(text)
    if value not in choices:
        raise OptionError(f"{value} is not one of {', '.join(map(str, choices))}")
    return value


def seconds(text: str, least: float = 0.0) -> float:
    """A duration in seconds, at least `least` and at most a day."""
    try:
        value = float(text)
    except ValueError:
        raise OptionError(f"{text!r} is not a number of seconds") from None
    if not 0 <= value <= 86_400:
        raise OptionError(f"{text} is not between 0 and 86400 seconds")
    if value < least:
        raise OptionError(f"{text} is less than {least:g} seconds")
    return value


def switch(text: str) -> bool:
    """Whether a variable of the environment switches something on, with 1."""
    return text == "1"


def words(text: str) -> list[str]:
    """Words with commas between them."""
    return [word.strip() for word in text.split(",") if word.strip()]


def amount(text: str) -> int:
    """Bytes of an absolute amount of memory, zero allowed."""
    if text.strip() == "0":
        return 0
    if is_share(text):
        raise OptionError(f"{text!r} is a share; write an amount like 2GiB")
    return parse_size(memory(text), 0)


def amount_text(size: int) -> str:
    """Bytes as `amount` reads them, in the largest unit of which they are a multiple.

    >>> amount_text(64 * 2**20), amount_text(1000)
    ('64MiB', '1000')
    """
    unit = next((unit for unit in ("TiB", "GiB", "MiB", "KiB") if size and size % parse_size(f"1{unit}", 0) == 0), "")
    return f"{size // parse_size(f'1{unit}', 0)}{unit}"


def share(text: str) -> float:
    """A part of a whole, as a number up to 1."""
    if not is_share(text):
        raise OptionError(f"{text[:64]!r} is no share; write one like 50%")
    return parse_size(memory(text), ONE_TIB) / ONE_TIB


def memory(text: str) -> str:
    """An amount of memory, absolute or a share; stays text, as the free memory is known only later."""
    try:
        parse_size(text, ONE_TIB)
    except UsageError as error:
        raise OptionError(str(error)) from None
    return text.strip()


def path(text: str) -> str:
    """A place in the file system, which need not exist yet."""
    if not text.strip() or "\0" in text:
        raise OptionError("it must be a path")
    return text


def word(text: str) -> str:
    """A name or a key: not empty, no spaces or control characters, at most 256 characters."""
    if not text or len(text) > 256 or any(c.isspace() or not c.isprintable() for c in text):
        raise OptionError(f"{text[:64]!r} must be 1 to 256 printable characters without spaces")
    return text
