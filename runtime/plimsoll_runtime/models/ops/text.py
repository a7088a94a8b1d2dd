"""An op as people read it."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

from plimsoll_runtime.models.ops.weight import Weight

_UNSAID = ("reads", "writes", "kind", "width")
"""Of every record: what stands elsewhere in its line, or in that of another op."""
_OF_MANY = re.compile(r"(?<=experts\.)\d+(?=\.)|(?<=\[)\d+(?=\]$)")
"""An expert's number, where each has a tensor of its own, and a tensor's in a stack."""


def text_of(op: Any, reads: tuple[str, ...]) -> str:
    """Its name, the values that it reads, its tensors, and whatever of its record says something."""
    said = [
        f"{field.name}={_value(value)}"
        for field in fields(op)
        if field.name not in _UNSAID
        and not _is_weight(value := getattr(op, field.name))
        and _says(value, field.default)
    ]
    name = "".join(f"_{c.lower()}" if c.isupper() else c for c in type(op).__name__).lstrip("_")
    tensors = dict.fromkeys(_OF_MANY.sub("*", str(weight)) for weight in op.weights())
    return f"{name}({', '.join([*reads, *tensors, *said])})"


def _is_weight(value: object) -> bool:
    return isinstance(value, Weight) or (isinstance(value, tuple) and any(map(_is_weight, value)))


def _says(value: object, default: object) -> bool:
    return value not in (None, ()) and value != default


def _value(value: Any) -> str:
    """A record by its fields that say something."""
    if not hasattr(value, "__dataclass_fields__"):
        return f"{value:g}" if isinstance(value, float) else str(value)
    said = [(field.name, getattr(value, field.name), field.default) for field in fields(value)]
    return f"({', '.join(f'{name}={_value(v)}' for name, v, default in said if v != default)})"
