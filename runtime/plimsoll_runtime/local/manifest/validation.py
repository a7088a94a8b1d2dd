"""Validates an object like the API server: all errors at once, in its words, with line numbers and advice."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from plimsoll_runtime.local.manifest import crd
from plimsoll_runtime.local.manifest.cel_rules import rule_errors
from plimsoll_runtime.local.manifest.crd import FieldError, Schema, Unknown, unknown_fields, with_defaults
from plimsoll_runtime.local.manifest.manifest import Document
from plimsoll_runtime.local.manifest.schema import schema_errors
from plimsoll_runtime.utils.suggestions import did_you_mean

SHOWN = 80
"""Maximum number of characters shown of a value."""
FORMS = {
    "integer": "a whole number",
    "number": "a number",
    "string": "text (put it in quotes)",
    "boolean": "true or false",
    "array": "a list",
    "object": "fields below it",
}


def error_advice(document: Document, error: FieldError) -> str:
    """Return a line to print below the error, or "" if there is nothing to add."""
    line = _line(document, error.path)
    if error.kind != "Type":
        return f"\n    in line {line}" if line else ""
    where = f"line {line} has" if line else "it is"
    return f"\n    {where} {json.dumps(error.found, ensure_ascii=False)[:SHOWN]}; write {_form(error.wanted)}"


def unknown_advice(document: Document, unknown: Unknown) -> str:
    """Return a line to print below an error about an unknown field, or ""."""
    line = _line(document, unknown.path)
    meant = did_you_mean(unknown.path.rpartition(".")[2], unknown.known)
    return f"\n    {f'in line {line}' if line else unknown.path}.{meant}" if line or meant else ""


def _line(document: Document, path: str) -> int | None:
    """Return the line of the field, or of the nearest enclosing field if the field is missing."""
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


SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
SUBDOMAIN_HELP = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must "
    "start and end with an alphanumeric character (e.g. 'example.com', "
    f"regex used for validation is '{SUBDOMAIN}')"
)
LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
LABEL_HELP = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
    f"with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '{LABEL}')"
)
SKIPPED = "rules over several fields were not checked; correct these errors first"


class RefusedError(Exception):
    """The object is invalid; `problems` are texts to print."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def admit(document: Document) -> dict[str, Any]:
    """Return the object with its defaults. Raises RefusedError with all its errors."""
    body = document.body
    kind, version = body.get("kind"), body.get("apiVersion")
    files = (file for file in (crd.MODELS, crd.POOLS) if (kind, version) == (crd.kind(file), crd.api_version(file)))
    if (file := next(files, None)) is None:
        raise RefusedError([_wrong_kind(document, kind, version)])
    schema = crd.schema(file)
    problems: list[str] = []
    if unknown := unknown_fields(body, schema):
        fields = ", ".join(f'unknown field "{one.path}"' for one in unknown)
        meant = "".join(map(partial(unknown_advice, document), unknown))
        problems.append(f"{document.origin}: {kind} {_title(body)}: strict decoding error: {fields}{meant}")
    filled: dict[str, Any] = with_defaults(body, schema)
    errors = _name_errors(filled) + schema_errors(filled, schema)
    skips = any(error.blocks_rules for error in errors)
    errors += [] if skips else rule_errors(filled, schema)
    if errors:
        told = [f"{error}{error_advice(document, error)}" for error in errors] + [SKIPPED] * skips
        listed = f" {told[0]}" if len(told) == 1 else "".join(f"\n* {one}" for one in told)
        problems.append(f"{document.origin}: The {kind} {_title(body)} is invalid:{listed}")
    if problems:
        raise RefusedError(problems)
    return filled


def _wrong_kind(document: Document, kind: Any, version: Any) -> str:
    return (
        f'{document.origin}: no matches for kind "{kind or ""}" in version "{version or ""}"; '
        f"this command takes {crd.kind()} and {crd.kind(crd.POOLS)} of {crd.api_version()}"
    )


def _title(body: Mapping[str, Any]) -> str:
    meta = body.get("metadata")
    return f'"{meta.get("name", "")}"' if isinstance(meta, dict) else '""'


def _name_errors(body: Mapping[str, Any]) -> list[FieldError]:
    meta = body.get("metadata")
    if meta is None:
        return [FieldError("metadata.name", "Required value", None, "name or generateName is required")]
    if not isinstance(meta, dict):
        return []  # the schema reports it
    name, namespace = meta.get("name"), meta.get("namespace", "default")
    errors: list[FieldError] = []
    if name is None:
        errors.append(FieldError("metadata.name", "Required value", None, "name or generateName is required"))
    elif not isinstance(name, str) or not re.fullmatch(SUBDOMAIN, name):
        errors.append(FieldError("metadata.name", "Invalid value", name, SUBDOMAIN_HELP))
    elif len(name) > 253:
        errors.append(FieldError("metadata.name", "Invalid value", name, "must be no more than 253 characters"))
    if not isinstance(namespace, str) or not re.fullmatch(LABEL, namespace):
        errors.append(FieldError("metadata.namespace", "Invalid value", namespace, LABEL_HELP))
    return errors
