"""Schemas in words, for the reference in Markdown and the page in HTML."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from plimsoll_runtime.api.openapi.document import SCHEMAS

MOST_VALUES = 12
"""Most values of an enumeration that are listed."""

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Words:
    """Describes the values that a schema allows. `link` formats the name of a type, `code` a value; `nulls` says
    whether null is mentioned."""

    link: Callable[[str], str]
    code: Callable[[Any], str]
    nulls: bool

    def kind(self, schema: Schema) -> str:
        """Return a text for the values that a schema allows."""
        if (reference := schema.get("$ref")) is not None:
            return self.link(reference.removeprefix(SCHEMAS))
        for joined in ("anyOf", "oneOf"):
            if joined in schema:
                kinds = [self.kind(one) for one in schema[joined] if self.nulls or one.get("type") != "null"]
                return " or ".join(dict.fromkeys(kinds))
        if "const" in schema:
            return self.code(schema["const"])
        if "enum" in schema:
            return ", ".join(map(self.code, schema["enum"][:MOST_VALUES]))
        return self._plain(schema)

    def _plain(self, schema: Schema) -> str:
        match schema.get("type"):
            case "array":
                return f"list{_size(schema, 'Items', '')} of {self.kind(schema.get('items', {}))}"
            case "object":
                inner = schema.get("additionalProperties")
                return f"object of {self.kind(inner)}" if isinstance(inner, dict) and inner else "object"
            case "string":
                pattern = f" {self.code(schema['pattern'])}" if "pattern" in schema else ""
                return f"text{_size(schema, 'Length', ' characters')}{pattern}"
            case "integer" | "number" as kind:
                return ("whole number" if kind == "integer" else "number") + _range(schema)
            case "boolean":
                return "true or false"
            case "null":
                return "null"
            case _:
                return "anything"


def _size(schema: Schema, of: str, unit: str) -> str:
    low, high = schema.get(f"min{of}"), schema.get(f"max{of}")
    told = ["not empty" if low == 1 else "", f"at most {high}{unit}" if high is not None else ""]
    return f" ({', '.join(filter(None, told))})" if any(told) else ""


def _range(schema: Schema) -> str:
    above, low, high = schema.get("exclusiveMinimum"), schema.get("minimum"), schema.get("maximum")
    high = schema.get("exclusiveMaximum", high)
    told = [f"above {above:g}" if above is not None else "", f"from {low:g}" if low is not None and low > -1e18 else ""]
    told.append(f"to {high:g}" if high is not None and high < 2**31 - 1 else "")
    return "".join(f" {word}" for word in told if word)
