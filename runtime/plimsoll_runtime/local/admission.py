"""What the API server would say to an object: all of it at once, in its words, with the lines of the file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from plimsoll_runtime.local import crd
from plimsoll_runtime.local.advice import error_advice, unknown_advice
from plimsoll_runtime.local.defaults import unknown_fields, with_defaults
from plimsoll_runtime.local.fielderror import FieldError
from plimsoll_runtime.local.manifest import Document
from plimsoll_runtime.local.rules import rule_errors
from plimsoll_runtime.local.schema import schema_errors

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
SKIPPED = "rules over several fields were not checked: correct these first"


class RefusedError(Exception):
    """The object would not be accepted; `problems` are texts to print."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def admit(document: Document) -> dict[str, Any]:
    """The object with its defaults. Raises RefusedError with everything that is wrong with it."""
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
        return []  # the schema says so
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
