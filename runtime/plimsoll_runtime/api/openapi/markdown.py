"""Generates docs/reference/api.md from the types of requests: every path and parameter with its state.

`python -m plimsoll_runtime.api.openapi.markdown docs/reference/api.md` writes it, below the mark in the file.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from plimsoll_runtime.api.openapi.document import NOT_OFFERED, OPERATIONS, SCHEMAS, Operation, document
from plimsoll_runtime.api.schemas.sampling import REFUSED, STATE

MARK = "<!-- What follows is generated: python -m plimsoll_runtime.api.openapi.markdown docs/reference/api.md -->\n"
MOST_VALUES = 12
"""Most values of an enumeration that are listed."""

Schema = Mapping[str, Any]


def reference() -> str:
    """Return the reference as Markdown."""
    schemas: Mapping[str, Schema] = document()["components"]["schemas"]
    lines = ["## Every path", "", "| path | what it does | returns |", "|---|---|---|", *map(_row, OPERATIONS)]
    lines += ["", "Not offered (404): " + ", ".join(_offers()) + ".", "", "## Every parameter", "", _STATES]
    shown: list[str] = []
    for operation in OPERATIONS:
        if operation.request is not None:
            lines += ["", f"### {operation.method.upper()} {operation.path}", ""]
            lines += _table(schemas[operation.request.__name__], shown)
    lines += ["", "## Parts of requests"]
    for name in shown:  # grows during the loop
        lines += ["", f"### {name}", "", *_described(schemas[name])]
        lines += _table(schemas[name], shown)
    return "\n".join(lines) + "\n"


_STATES = (
    "*required* and *supported* parameters have their usual effect, *ignored* ones are accepted without effect, "
    "*refused* ones give a 400 that names them.\nParameters that are not listed are ignored and named in "
    "`X-Plimsoll-Ignored`, or refused (400) with `--strict-parameters`."
)


def renewed(text: str) -> str:
    """Return the file's text with the present reference. Raises ValueError if the mark is missing."""
    prose, mark, _ = text.partition(MARK)
    if not mark:
        raise ValueError("the file has no line with the mark above the reference")
    return prose + MARK + "\n" + reference()


def _row(operation: Operation) -> str:
    kinds = (operation.answer, *operation.others)
    answers = " or ".join(f"`{kind}`" if isinstance(kind, str) else kind.__name__ for kind in kinds)
    events = ", or a stream" if operation.event is not None else ""
    return f"| `{operation.method.upper()} {operation.path}` | {operation.summary} | {answers}{events} |"


def _offers() -> Iterator[str]:
    return (f"`/v1/{family}`" for family in NOT_OFFERED)


def _described(schema: Schema) -> list[str]:
    text = " ".join(schema.get("description", "").split())
    return [text, ""] if text else []


def _table(schema: Schema, shown: list[str]) -> list[str]:
    """Return the fields of an object; add their types to `shown`."""
    required = schema.get("required", ())
    lines = ["| parameter | state | type |", "|---|---|---|"]
    for name, field in schema.get("properties", {}).items():
        state = field.get(STATE) or ("required" if name in required else "supported")
        kind = "" if state == REFUSED else _kind(field, shown)
        lines.append(f"| `{name}` | {state} | {kind.replace('|', chr(92) + '|')} |")
    return lines if len(lines) > 2 else []


def _kind(schema: Schema, shown: list[str]) -> str:
    """Return a text for the values that a schema allows."""
    if (reference := schema.get("$ref")) is not None:
        name = reference.removeprefix(SCHEMAS)
        if name not in shown:
            shown.append(name)
        return f"[{name}](#{name.lower()})"
    for joined in ("anyOf", "oneOf"):
        if joined in schema:
            kinds = [_kind(one, shown) for one in schema[joined] if one.get("type") != "null"]
            return " or ".join(dict.fromkeys(kinds))
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"][:MOST_VALUES])
    return _plain(schema, shown)


def _plain(schema: Schema, shown: list[str]) -> str:
    match schema.get("type"):
        case "array":
            return f"list{_size(schema, 'Items', '')} of {_kind(schema.get('items', {}), shown)}"
        case "object":
            inner = schema.get("additionalProperties")
            return f"object of {_kind(inner, shown)}" if isinstance(inner, dict) and inner else "object"
        case "string":
            return f"text{_size(schema, 'Length', ' characters')}" + (
                f" `{schema['pattern']}`" if "pattern" in schema else ""
            )
        case "integer" | "number" as kind:
            return ("whole number" if kind == "integer" else "number") + _range(schema)
        case "boolean":
            return "true or false"
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


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(renewed(file.read_text(encoding="utf-8")), encoding="utf-8")
