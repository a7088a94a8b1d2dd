"""Amounts of memory as people write them ("2GiB", "512 MB", "40%"), and as Kubernetes does ("2Gi", "1500M", "1e9")."""

from __future__ import annotations

import re
from fractions import Fraction

from plimsoll_runtime.errors import UsageError

UNITS = {"": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40, "KB": 10**3, "MB": 10**6, "GB": 10**9}
"""In any case."""
KUBERNETES = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
"""As they stand: there a small m is a thousandth."""
_AMOUNT = re.compile(r"\s*(\d{1,32}(?:\.\d{1,32})?)(?:[eE]\+?(\d{1,2})|\s*([A-Za-z]*|%))\s*", re.ASCII)


def is_share(text: str) -> bool:
    """Whether it is written as a part of what is free: "40%"."""
    return text.strip().endswith("%")


def parse_size(text: str, free: int) -> int:
    """Whole bytes of "2GiB", "1.5 GB", "2Gi", "1e9", "1073741824", or "40%" of `free`.

    Raises UsageError when the text is none of these or not positive. A fraction needs a unit: 0.5 may be meant as 50%.
    """
    match = _AMOUNT.fullmatch(text)
    number = Fraction(match.group(1)) if match else Fraction(0)
    if match is None or number <= 0:
        raise _refusal(text)
    exponent, unit = match.group(2), match.group(3)
    if unit == "%":
        if number > 100:
            raise UsageError(f"{text!r} is more than all of the memory; write at most 100%")
        return int(free * number / 100)
    factor = 10 ** int(exponent) if exponent is not None else KUBERNETES.get(unit) or UNITS.get(unit.upper())
    if factor is None or (not (unit or exponent) and number % 1):
        raise _refusal(text)
    return int(number * factor)


def _refusal(text: str) -> UsageError:
    return UsageError(f"{text!r} is not an amount of memory; write it like 2GiB, 512MiB or 40%")
