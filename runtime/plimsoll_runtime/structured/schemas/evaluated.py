"""Which properties a schema says something of, whatever the value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plimsoll_runtime.structured.schemas.references import References

_DEPENDING = frozenset({"$dynamicRef", "$recursiveRef", "anyOf", "dependencies", "dependentSchemas", "if", "oneOf"})


@dataclass(frozen=True, slots=True)
class Evaluated:
    """By name or by pattern; or `all` that there are."""

    names: tuple[str, ...]
    patterns: tuple[str, ...]
    all: bool


def evaluated(schema: Mapping[str, Any], references: References) -> Evaluated | None:
    """Of the schema itself, without its `unevaluatedProperties`. None where it depends on the value."""
    names: dict[str, None] = {}
    patterns: dict[str, None] = {}
    seen: set[int] = set()
    waiting: list[Mapping[str, Any] | bool] = [schema]
    depends = False
    while waiting:
        part = waiting.pop()
        if isinstance(part, bool) or id(part) in seen:
            continue
        seen.add(id(part))
        if "additionalProperties" in part or (part is not schema and "unevaluatedProperties" in part):
            return Evaluated((), (), all=True)
        names |= dict.fromkeys(part.get("properties", ()))
        patterns |= dict.fromkeys(part.get("patternProperties", ()))
        target = references.target(part)
        depends = depends or bool(_DEPENDING & part.keys()) or ("$ref" in part and target is None)
        waiting += part.get("allOf", ())
        if target is not None:
            waiting.append(target.schema)
    return None if depends else Evaluated(tuple(names), tuple(patterns), all=False)
