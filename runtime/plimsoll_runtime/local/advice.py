"""What to do about an error in a file: its line, what is written there, and what may be."""

from __future__ import annotations

import json
import re

from plimsoll_runtime.local.crd import Schema
from plimsoll_runtime.local.defaults import Unknown
from plimsoll_runtime.local.fielderror import FieldError
from plimsoll_runtime.local.manifest import Document
from plimsoll_runtime.utils.suggestions import did_you_mean

SHOWN = 80
"""Characters of a value."""
FORMS = {
    "integer": "a whole number",
    "number": "a number",
    "string": "text (put it in quotes)",
    "boolean": "true or false",
    "array": "a list",
    "object": "fields below it",
}


def error_advice(document: Document, error: FieldError) -> str:
    """A line to print below the error; empty where there is nothing to add."""
    line = _line(document, error.path)
    if error.kind != "Type":
        return f"\n    in line {line}" if line else ""
    where = f"line {line} has" if line else "it is"
    return f"\n    {where} {json.dumps(error.found, ensure_ascii=False)[:SHOWN]}; write {_form(error.wanted)}"


def unknown_advice(document: Document, unknown: Unknown) -> str:
    """Likewise for a field that the schema does not know."""
    line = _line(document, unknown.path)
    meant = did_you_mean(unknown.path.rpartition(".")[2], unknown.known)
    return f"\n    {f'in line {line}' if line else unknown.path}.{meant}" if line or meant else ""


def _line(document: Document, path: str) -> int | None:
    """That of the field, or of the nearest around it: a field that is missing has none."""
    while path and path not in document.lines:
        path = re.sub(r"(^|\.)[^.\[]*$|\[[^]]*\]$", "", path)
    return document.lines.get(path)


def _form(schema: Schema) -> str:
    said = schema["type"]
    form = " or ".join(FORMS[kind] for kind in ([said] if isinstance(said, str) else said) if kind in FORMS)
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        form += f" from {low} to {high}"
    elif low is not None:
        form += f" of at least {low}"
    elif high is not None:
        form += f" of at most {high}"
    return form
