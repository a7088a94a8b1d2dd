"""The schema of all values that another one refuses, where that can be written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll_runtime.structured.schemas.kinds import ALL, kind_of, kinds_of, types_of
from plimsoll_runtime.structured.schemas.site import Schema

_MOST = 16


def complement(schema: Schema) -> Schema | None:
    """Of a schema as `normalise` writes them; None where it cannot be written."""
    if isinstance(schema, bool):
        return not schema
    if not schema:
        return False
    rest = dict(schema)
    kinds = kinds_of(rest.pop("type", None))
    others = _not_of(kinds)
    if others is None:
        return None
    within = _within(rest, kinds)
    if within is None:
        return None
    branches = [each for each in (others, within) if each is not False]
    return {"anyOf": branches} if len(branches) > 1 else branches[0] if branches else False


def _not_of(kinds: frozenset[str]) -> Schema | None:
    types = types_of(ALL - kinds)
    return None if types is None else {"type": types} if types else False


def _within(rest: Mapping[str, Any], kinds: frozenset[str]) -> Schema | None:
    """Of the values of these kinds, those that what else a schema says refuses."""
    match list(rest.items()):
        case []:
            return False
        case [("required", [*names])] if "object" in kinds and len(names) <= _MOST:
            return {"type": "object", "anyOf": [{"properties": {name: False}} for name in names]} if names else False
        case [("properties", {**properties})] if "object" in kinds and properties:
            if any(value is not False for value in properties.values()) or len(properties) > _MOST:
                return None
            return {"type": "object", "anyOf": [{"required": [name]} for name in properties]}
        case [("const", value)]:
            return _not_among([value], kinds)
        case [("enum", [*values])]:
            return _not_among(values, kinds)
        case [("anyOf", [*branches])] if kinds == ALL and len(branches) <= _MOST:
            found = [complement(branch) for branch in branches]
            return None if None in found else {"allOf": found}
        case [("allOf", [*members])] if kinds == ALL and len(members) <= _MOST:
            found = [complement(member) for member in members]
            return None if None in found else {"anyOf": found}
    return None


def _not_among(values: list[Any], kinds: frozenset[str]) -> Schema | None:
    """Of kinds that have few values, those that are not listed."""
    listed = [value for value in values if kind_of(value) in kinds]
    if any(kind_of(value) not in ("null", "boolean") for value in listed):
        return None
    missing = [truth for truth in (True, False) if "boolean" in kinds and not any(value is truth for value in listed)]
    rest = kinds - {"boolean"} - ({"null"} if None in listed else frozenset())
    types = types_of(rest)
    if types is None:
        return None
    branches: list[Schema] = [{"type": types}] if types else []
    branches += [{"enum": missing}] if missing else []
    return {"anyOf": branches} if branches else False
