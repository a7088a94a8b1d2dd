"""Loads the CRDs of ModelDeployments and RuntimePools, fills in their defaults, and finds unknown fields."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

MODELS, POOLS = "modeldeployments.yaml", "runtimepools.yaml"
# A wheel has the files next to this module, a checkout in the repository's root.
PLACES = (Path(__file__).parent / "crds", Path(__file__).parents[4] / "crds")

Schema = Mapping[str, Any]


@cache
def load_crd(file: str = MODELS) -> Mapping[str, Any]:
    """Return the CustomResourceDefinition. Raises FileNotFoundError if the installation is broken."""
    for place in PLACES:
        if (path := place / file).is_file():
            crd: dict[str, Any] = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
            return crd
    raise FileNotFoundError(f"{file} is missing in {' and '.join(map(str, PLACES))}; reinstall plimsoll-serving")


def api_version(file: str = MODELS) -> str:
    """Return the apiVersion that objects must have, which is the stored version's."""
    spec = load_crd(file)["spec"]
    return f"{spec['group']}/{_version(file)['name']}"


def kind(file: str = MODELS) -> str:
    """Return the kind that objects must have."""
    return str(load_crd(file)["spec"]["names"]["kind"])


def schema(file: str = MODELS) -> Schema:
    """Return the structural schema of the object."""
    found: Schema = _version(file)["schema"]["openAPIV3Schema"]
    return found


def child_schema(schema: Schema, key: str) -> Schema | None:
    """Return the schema of one member of an object, or None if the schema does not describe the member."""
    if key in (properties := schema.get("properties", {})):
        found: Schema = properties[key]
        return found
    others = schema.get("additionalProperties")
    return others if isinstance(others, dict) else None


def _version(file: str) -> Mapping[str, Any]:
    return next(version for version in load_crd(file)["spec"]["versions"] if version["storage"])


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
    """A field that is not in the schema, and its siblings that are."""

    path: str
    known: tuple[str, ...]


def unknown_fields(body: Mapping[str, Any], schema: Schema) -> list[Unknown]:
    """Return the fields that are not in the schema, in the order of the file."""
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
    """Return a copy with defaults filled in. Nulls count as absent, unless the schema allows them."""
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


# Error kinds that do not print the value.
VALUELESS = frozenset(["Required value", "Too long", "Forbidden"])
# The API server skips the CEL rules if an object has any of these errors.
BLOCKING = frozenset(["Required value", "Unsupported value", "Too long", "Too many", "Type"])


@dataclass(frozen=True, slots=True)
class FieldError:
    """An error at `path`, such as `spec.replicas`. `kind` is the API server's title ("Type" is printed as "Invalid
    value").

    For a wrong type, `value` is the type's name, `found` the value in the file, and `wanted` the schema.
    """

    path: str
    kind: str
    value: Any
    detail: str
    found: Any = None
    wanted: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        title = "Invalid value" if self.kind == "Type" else self.kind
        shown = title if self.kind in VALUELESS else f"{title}: {_shown(self.value)}"
        where = self.path or "<nil>"
        return f"{where}: {shown}: {self.detail}" if self.detail else f"{where}: {shown}"

    @property
    def blocks_rules(self) -> bool:
        """Whether the CEL rules are skipped because of this error."""
        return self.kind in BLOCKING


def field_path(parts: Sequence[str | int]) -> str:
    """Return a path such as `spec.template.env[0].name`."""
    path = ""
    for part in parts:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


def _shown(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
