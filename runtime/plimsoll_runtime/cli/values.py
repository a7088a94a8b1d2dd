"""Option values: each function turns a word of the command line into a value or says what to write instead."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError

from plimsoll_runtime.engine.config import ATTENTION_BACKENDS, BLOCK_SIZES
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.utils.sizes import is_share, parse_size

LIMIT = 2**31
ONE_TIB = 2**40
LEAST_INTERVAL = 0.1


def positive(text: str) -> int:
    """A whole number from 1 up."""
    return _whole(text, 1, LIMIT)


def count(text: str) -> int:
    """A whole number, zero allowed."""
    return _whole(text, 0, LIMIT)


def port(text: str) -> int:
    """A TCP port; 0 lets the system choose one."""
    return _whole(text, 0, 65535)


def block_size(text: str) -> int:
    """Tokens of a KV block: a power of two that kernels are made for."""
    value = _whole(text, 1, LIMIT)
    if value not in BLOCK_SIZES:
        raise ArgumentTypeError(f"{value} is not one of {', '.join(map(str, BLOCK_SIZES))}")
    return value


def seconds(text: str) -> float:
    """A duration in seconds, zero allowed."""
    try:
        value = float(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a number of seconds") from None
    if not 0 <= value <= 86_400:
        raise ArgumentTypeError(f"{text} is not between 0 and 86400 seconds")
    return value


def interval(text: str) -> float:
    """A duration in seconds that is not nothing."""
    value = seconds(text)
    if value < LEAST_INTERVAL:
        raise ArgumentTypeError(f"{text} is less than {LEAST_INTERVAL:g} seconds")
    return value


def amount(text: str) -> int:
    """Bytes of an absolute amount of memory, zero allowed."""
    if text.strip() == "0":
        return 0
    if is_share(text):
        raise ArgumentTypeError(f"{text!r} is a share; write an amount like 2GiB")
    return parse_size(memory(text), 0)


def share(text: str) -> float:
    """A part of a whole, as a number up to 1."""
    if not is_share(text):
        raise ArgumentTypeError(f"{text[:64]!r} is no share; write one like 50%")
    return parse_size(memory(text), ONE_TIB) / ONE_TIB


def memory(text: str) -> str:
    """An amount of memory, absolute or a share; stays text, as the free memory is known only later."""
    try:
        parse_size(text, ONE_TIB)
    except UsageError as error:
        raise ArgumentTypeError(str(error)) from None
    return text.strip()


def path(text: str) -> str:
    """A place in the file system, which need not exist yet."""
    if not text.strip() or "\0" in text:
        raise ArgumentTypeError("it must be a path")
    return text


def attention_backend(text: str) -> str:
    """The name of an attention backend, or of two, joined by +: of the one for prompts and the one for decodes."""
    names = text.split("+")
    alone = set(ATTENTION_BACKENDS) - {"auto"}
    if text != "auto" and not (len(names) <= 2 and alone.issuperset(names)):
        raise ArgumentTypeError(f"invalid choice: {text[:64]!r} (choose from {', '.join(ATTENTION_BACKENDS)})")
    return text


def word(text: str) -> str:
    """A name or a key: not empty, no spaces or control characters, at most 256 characters."""
    if not text or len(text) > 256 or any(c.isspace() or not c.isprintable() for c in text):
        raise ArgumentTypeError(f"{text[:64]!r} must be 1 to 256 printable characters without spaces")
    return text


def _whole(text: str, low: int, high: int) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        raise ArgumentTypeError(f"{text[:64]!r} is not a whole number")
    value = int(text)
    if not low <= value <= high:
        raise ArgumentTypeError(f"{value} is not between {low} and {high}")
    return value
