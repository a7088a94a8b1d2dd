"""Kubernetes' quantities (8Gi, 500m, 1e3), as its resource.Quantity reads them: without any digits, too, they are 0."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import ROUND_UP, Context, Decimal

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
    """An amount, in billionths rounded away from zero, at most 2**63 - 1."""

    amount: Decimal

    @classmethod
    def parse(cls, text: str) -> Quantity:
        """Raises ValueError where Kubernetes refuses the text."""
        match = FORM.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is no quantity; write it like 8Gi")
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
