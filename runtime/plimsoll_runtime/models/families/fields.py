"""One field of a config: of the kind that it has to be, or refused by its name; and the class that it names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from plimsoll_runtime.errors import ModelError

T = TypeVar("T", int, float, bool, str)

MAX_NUMBER = 2**63


def typed(values: Mapping[str, Any], field: str, kind: type[T], default: T | None, what: str = "") -> T:
    """Null or missing is the default, and a ModelError when there is none; `what` stands before the field's name."""
    value = values.get(field)
    if value is None:
        if default is None:
            raise ModelError(f"config.json: {what}{field} is missing")
        return default
    if kind is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) < MAX_NUMBER:
        value = float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ModelError(f"config.json: {what}{field} is {value!r}, which is no {kind.__name__}")
    if isinstance(value, int | float) and not 0 <= value < MAX_NUMBER:
        raise ModelError(f"config.json: {what}{field} is {value!r}, which is negative or beyond all use")
    return value


def saved_class(config: Mapping[str, Any]) -> str:
    """The class that the files were saved from; "" where they do not say."""
    names = config.get("architectures")
    return str(names[0]) if isinstance(names, list) and names else ""
