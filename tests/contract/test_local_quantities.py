"""Laptop mode parses quantities like the API server."""

from __future__ import annotations

import pytest
from celpy.celtypes import StringType

from plimsoll_runtime.local.manifest.cel_rules import compiled

RECORDED: list[tuple[str, tuple[int, int, bool, bool] | None]] = [
    ("0", (0, -1, True, False)),
    ("1", (1, 0, True, False)),
    ("17", (1, 1, True, True)),
    ("-5", (-1, -1, True, False)),
    ("+3", (1, 1, True, True)),
    ("1.", (1, 0, True, False)),
    ("0.9", (1, -1, True, False)),
    (".5", (1, -1, True, False)),
    ("1.5", (1, 1, True, True)),
    ("100m", (1, -1, True, False)),
    ("1n", (1, -1, True, False)),
    ("1u", (1, -1, True, False)),
    ("0.1n", (1, -1, True, False)),
    ("1k", (1, 1, True, True)),
    ("1K", None),
    ("1Ki", (1, 1, False, True)),
    ("1M", (1, 1, False, True)),
    ("1Mi", (1, 1, False, True)),
    ("1.5Gi", (1, 1, False, True)),
    ("2G", (1, 1, False, True)),
    ("3T", (1, 1, False, True)),
    ("1Ti", (1, 1, False, True)),
    ("1P", (1, 1, False, True)),
    ("1Pi", (1, 1, False, True)),
    ("1E", (1, 1, False, True)),
    ("1Ei", (1, 1, False, True)),
    ("9Ei", (1, 1, False, True)),
    ("1e3", (1, 1, True, True)),
    ("1E3", (1, 1, True, True)),
    ("1e-3", (1, -1, True, False)),
    ("1e400", (1, 1, False, True)),
    ("2GiB", None),
    ("2GB", None),
    ("2MB", None),
    ("512 Mi", None),
    (" 1", None),
    ("1 ", None),
    ("", None),
    ("B", None),
    ("Gi", (0, -1, True, False)),
    ("-", (0, -1, True, False)),
    ("1GI", None),
    ("1gi", None),
    ("40%", None),
    ("0x10", None),
    ("1_000", None),
    ("\u0661", None),
    ("9223372036854775807", (1, 1, False, True)),
    ("9223372036854775808", (1, 1, False, True)),
    ("99999999999999999999", (1, 1, False, True)),
    ("0.0000000001", (1, -1, True, False)),
    ("1.0000000001Ki", (1, 1, False, True)),
    ("-0.0000000001", (-1, -1, True, False)),
    ("--1", None),
    ("1.2.3", None),
    ("1e", None),
    ("1ee3", None),
    ("1m5", None),
]
"""Text, and the result of kube-apiserver 1.34.3 in CEL: its sign, its order relative to 1, whether it is below 1Ki -
1 and whether it is above 1. None: not a quantity.
"""
SAYS = (
    "sign(quantity(self))",
    "quantity(self).compareTo(quantity('1'))",
    "quantity(self).add(quantity('1')).isLessThan(quantity('1Ki'))",
    "quantity(self).sub(1).isGreaterThan(quantity('0'))",
)


@pytest.mark.parametrize(("text", "verdict"), RECORDED)
def test_a_quantity_is_what_it_is_to_kubernetes(text: str, verdict: tuple[int, int, bool, bool] | None) -> None:
    activation = {"self": StringType(text)}
    assert bool(compiled("isQuantity(self)").evaluate(activation)) is (verdict is not None)
    if verdict is not None:
        assert [compiled(says).evaluate(activation) for says in SAYS] == list(verdict)
