"""Parses amounts of memory ("2GiB", "40%") and Kubernetes' quantities ("2Gi", "500m", "1e3")."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import ROUND_UP, Context, Decimal
from fractions import Fraction

from plimsoll_runtime.errors import UsageError

UNITS = {"": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40, "KB": 10**3, "MB": 10**6, "GB": 10**9}
"""Units in upper case; they are not case-sensitive."""
KUBERNETES = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
"""Case-sensitive units, because in Kubernetes a small m is a thousandth."""
_AMOUNT = re.compile(r"\s*(\d{1,32}(?:\.\d{1,32})?)(?:[eE]\+?(\d{1,2})|\s*([A-Za-z]*|%))\s*", re.ASCII)


def is_share(text: str) -> bool:
    """Return whether the text is a share of the free memory, such as "40%"."""
    return text.strip().endswith("%")


def parse_size(text: str, free: int) -> int:
    """Return the bytes of "2GiB", "1.5 GB", "2Gi", "1e9", "1073741824", or "40%" of `free`.

    Raises UsageError if the text has another form or is not positive. A fraction needs a unit, because 0.5 may be meant
    as 50%.
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


FORM = re.compile(
    r"(?=.)(?P<sign>[+-]?)(?P<number>[0-9]*\.?[0-9]*)"
    r"(?:(?P<suffix>[numkMGTPE]|[KMGTPE]i)|[eE](?P<power>[+-]?[0-9]{1,3}))?"
)
DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
SMALLEST, LARGEST = Decimal("1e-9"), Decimal(2**63 - 1)
EXACT = Context(prec=2000)


@dataclass(frozen=True, slots=True, order=True)
class Quantity:
    """An amount, rounded away from zero to billionths, at most 2**63 - 1.

    Parses like Kubernetes' resource.Quantity: a text without digits is 0.
    """

    amount: Decimal

    @classmethod
    def parse(cls, text: str) -> Quantity:
        """Parse a quantity. Raises ValueError if Kubernetes rejects the text."""
        match = FORM.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not a quantity; write it like 8Gi")
        suffix = match["suffix"] or ""
        factor = Decimal(2 ** BINARY[suffix]) if suffix in BINARY else EXACT.power(10, DECIMAL[suffix])
        if match["power"]:
            factor = EXACT.power(10, int(match["power"]))
        number = Decimal(f"{match['sign']}0{match['number']}")
        amount = EXACT.multiply(number, factor)
        bounded = max(-LARGEST, min(LARGEST, amount))
        return cls(bounded.quantize(SMALLEST, ROUND_UP, EXACT))

    @property
    def sign(self) -> int:
        """-1, 0 or 1."""
        return (self.amount > 0) - (self.amount < 0)
