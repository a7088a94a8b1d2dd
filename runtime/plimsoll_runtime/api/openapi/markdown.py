"""Generates docs/reference/api.md from the types of requests: every path and parameter with its state.

`python -m plimsoll_runtime.api.openapi.markdown docs/reference/api.md` writes it, below the mark in the file.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from plimsoll_runtime.api.openapi.document import NOT_OFFERED, OPERATIONS, Operation, document
from plimsoll_runtime.api.openapi.words import Schema, Words
from plimsoll_runtime.api.schemas.sampling import REFUSED, STATE

MARK = "<!-- What follows is generated: python -m plimsoll_runtime.api.openapi.markdown docs/reference/api.md -->\n"


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
    """Return the lines of a table of an object's fields; append the names of the types that it links to `shown`."""

    def link(kind: str) -> str:
        if kind not in shown:
            shown.append(kind)
        return f"[{kind}](#{kind.lower()})"

    words, required = Words(link, lambda value: f"`{value}`", nulls=False), schema.get("required", ())
    lines = ["| parameter | state | type |", "|---|---|---|"]
    for name, field in schema.get("properties", {}).items():
        state = field.get(STATE) or ("required" if name in required else "supported")
        kind = "" if state == REFUSED else words.kind(field)
        lines.append(f"| `{name}` | {state} | {kind.replace('|', chr(92) + '|')} |")
    return lines if len(lines) > 2 else []


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(renewed(file.read_text(encoding="utf-8")), encoding="utf-8")
