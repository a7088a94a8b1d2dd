"""What a draft before 2019 leaves out of account."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_OLD = re.compile(r"https?://json-schema\.org/draft-0[0-7]/schema#?")
_LATER = frozenset({
    "$anchor",
    "$dynamicAnchor",
    "$dynamicRef",
    "$recursiveRef",
    "dependentRequired",
    "dependentSchemas",
    "maxContains",
    "minContains",
    "prefixItems",
    "unevaluatedItems",
    "unevaluatedProperties",
})  # fmt: skip
_BESIDE_REFERENCES = frozenset({"$ref", "$defs", "definitions"})
_VALUES = frozenset({"const", "enum", "default", "examples"})
_NAMED = frozenset({"$defs", "definitions", "dependencies", "patternProperties", "properties"})


def of_its_draft(root: Mapping[str, Any]) -> Mapping[str, Any]:
    """A document without the keywords that its `$schema` does not know, or ignores beside a `$ref`."""
    named = root.get("$schema")
    if not isinstance(named, str) or not _OLD.fullmatch(named):
        return root
    found = _schema(root)
    assert isinstance(found, dict)
    return found


def _schema(value: Any) -> Any:
    if isinstance(value, list):
        return [_schema(each) for each in value]
    if not isinstance(value, Mapping):
        return value
    refers = isinstance(value.get("$ref"), str)
    known = {k: v for k, v in value.items() if k not in _LATER and (not refers or k in _BESIDE_REFERENCES)}
    return {key: _member(key, inner) for key, inner in known.items()}


def _member(key: str, value: Any) -> Any:
    if key in _VALUES:
        return value
    if key in _NAMED and isinstance(value, Mapping):
        return {name: _schema(each) for name, each in value.items()}
    return _schema(value)
