"""Amounts of memory in the notations of Kubernetes and of the runtime."""

from __future__ import annotations

import re
from fractions import Fraction

AMOUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?)(?:[eE]\+?([0-9]{1,2})|([kKMGT]?)(i?)B?)")
POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def byte_count(text: str) -> int:
    """Return the number of bytes of 8Gi, 8G, 8e9 (Kubernetes), 8GiB, 8GB or 8000. Raise ValueError for other text."""
    match = AMOUNT.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not an amount of memory; write it like 8Gi")
    number, exponent, letter, binary = match.groups()
    factor: int = 10 ** int(exponent) if exponent else (1024 if binary else 1000) ** POWERS[letter.upper()]
    return int(Fraction(number) * factor)
