"""Kubernetes' extensions of CEL that celpy lacks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from celpy.celtypes import BoolType, IntType, ListType, StringType
from celpy.evaluation import bool_eq

from plimsoll_runtime.utils.sizes import Quantity


def _is_quantity(text: StringType) -> BoolType:
    try:
        Quantity.parse(text)
    except ValueError:
        return BoolType(False)
    return BoolType(True)


def _compare(one: Quantity, other: Quantity) -> IntType:
    return IntType((one > other) - (one < other))


def _operand(value: Quantity | IntType) -> Decimal:
    return value.amount if isinstance(value, Quantity) else Decimal(int(value))


def _replace(text: StringType, old: StringType, new: StringType, limit: int = -1) -> StringType:
    return StringType(str(text).replace(str(old), str(new), int(limit)))


def _format(text: StringType, values: ListType) -> StringType:
    """Put the values into a text at its `%d` and `%s`; `%%` is a percent sign."""
    rest = iter(values)
    return StringType(re.sub("%[ds%]", lambda found: "%" if found[0] == "%%" else str(next(rest)), text))


def _equals(one: Any, other: Any) -> Any:
    """Compare two values like CEL's `==`: false for values of different types, for which celpy raises TypeError."""
    try:
        return bool_eq(one, other)
    except TypeError:
        return BoolType(False)


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "_==_": _equals,
    "isQuantity": _is_quantity,
    "quantity": Quantity.parse,
    "sign": lambda quantity: IntType(quantity.sign),
    "add": lambda one, other: Quantity(one.amount + _operand(other)),
    "sub": lambda one, other: Quantity(one.amount - _operand(other)),
    "compareTo": _compare,
    "isLessThan": lambda one, other: BoolType(one < other),
    "isGreaterThan": lambda one, other: BoolType(one > other),
    "replace": _replace,
    "format": _format,
}
