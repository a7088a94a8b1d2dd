"""What the API server does to an object before validating it: refuse unknown fields, drop nulls, fill defaults."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plimsoll_runtime.local.crd import Schema, child_schema

OBJECT_META = (
    "annotations",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "labels",
    "managedFields",
    "name",
    "namespace",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
)
ANYTHING = {"x-kubernetes-preserve-unknown-fields": True}


@dataclass(frozen=True, slots=True)
class Unknown:
    """A field that the schema does not know, and those that it knows beside it."""

    path: str
    known: tuple[str, ...]


def unknown_fields(body: Mapping[str, Any], schema: Schema) -> list[Unknown]:
    """The fields that the schema does not know, in the order of the file."""
    root = {
        **schema,
        "properties": {
            **schema.get("properties", {}),
            "apiVersion": {},
            "kind": {},
            "metadata": {"properties": dict.fromkeys(OBJECT_META, ANYTHING)},
        },
    }
    return _unknown(body, root, "")


def _unknown(value: Any, schema: Schema, path: str) -> list[Unknown]:
    found: list[Unknown] = []
    if isinstance(value, dict):
        for key, item in value.items():
            where = f"{path}.{key}" if path else key
            inner = child_schema(schema, key)
            if inner is not None:
                found += _unknown(item, inner, where)
            elif "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
                found.append(Unknown(where, tuple(schema["properties"])))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            found += _unknown(item, schema.get("items", {}), f"{path}[{index}]")
    return found


def with_defaults(value: Any, schema: Schema) -> Any:
    """A copy in which nulls count as absent (unless they are allowed) and defaults are filled in."""
    if isinstance(value, dict):
        filled: dict[str, Any] = {}
        for key, item in value.items():
            known = child_schema(schema, key)
            if item is not None or known is None or known.get("nullable"):
                filled[key] = with_defaults(item, known or {})
        for key, inner in schema.get("properties", {}).items():
            if key not in filled and "default" in inner:
                filled[key] = with_defaults(copy.deepcopy(inner["default"]), inner)
        return filled
    if isinstance(value, list):
        return [with_defaults(item, schema.get("items", {})) for item in value]
    return value
