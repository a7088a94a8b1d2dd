"""Rewrites keywords that combine schemas, and computes complements of schemas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll_runtime.structured.schemas.context import Schema, Site
from plimsoll_runtime.structured.schemas.types import ALL, SHAPES, canonical, kind_of, kinds_of, types_of

_MOST = 16


def complement(schema: Schema) -> Schema | None:
    """Return the complement of a normalised schema, or None if it cannot be expressed."""
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
    """Return a schema for values of `kinds` that violate the keywords in `rest`; None if it cannot be expressed, False
    if there are none.
    """
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
    """Return a schema for values of `kinds` other than the given ones: False if there are none, None if it cannot be
    expressed (as for numbers and texts).
    """
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


def all_of(site: Site) -> None:
    """Rewrite `allOf` from `site.given` to `site.out`."""
    members = [site.inner(each, "allOf", index) for index, each in enumerate(site.given["allOf"])]
    site.out["allOf"] = [member for member in members if member is not True]


def any_of(site: Site) -> None:
    """Rewrite `anyOf` from `site.given` to `site.out`, without branches that no value satisfies."""
    branches = [site.inner(each, "anyOf", index) for index, each in enumerate(site.given["anyOf"])]
    _choose(site, branches)


def one_of(site: Site) -> None:
    """Rewrite `oneOf` as `anyOf`, which is equivalent if no value satisfies two branches."""
    given = site.given["oneOf"]
    branches = [site.inner(each, "oneOf", index) for index, each in enumerate(given)]
    possible = [each for each, branch in zip(given, branches, strict=True) if branch is not False]
    if len(possible) > 1 and not site.signatures.all_disjoint(possible):
        site.leave("oneOf")
    _choose(site, branches)


def _choose(site: Site, branches: list[Schema]) -> None:
    if True in branches:
        return
    possible = [branch for branch in branches if branch is not False]
    if not possible:
        site.also(False)
    elif "anyOf" in site.out:
        site.also({"anyOf": possible})
    else:
        site.out["anyOf"] = possible


def negation(site: Site) -> None:
    """Replace `not` by schemas without it that must hold as well, or record it as unenforced."""
    given: Schema = site.given["not"]
    if site.signatures.disjoint(site.given, given):
        return
    options = [site.given["const"]] if "const" in site.given else site.given.get("enum")
    refused = _listed(given)
    if options is not None and refused is not None:
        kept = [option for option in options if canonical(option) not in refused]
        site.also({"enum": kept} if kept else False)
        return
    inner = site.exactly(given, "not")
    found = None if inner is None else complement(inner)
    if found is None:
        site.leave("not")
    else:
        site.also(found)


def _listed(schema: Schema) -> frozenset[str] | None:
    """Return the values of a schema that only lists values, else None."""
    if isinstance(schema, bool) or not schema.keys() & SHAPES.keys() <= {"const", "enum", "type"}:
        return None
    options = [schema["const"]] if "const" in schema else schema.get("enum")
    if options is None or ("const" in schema and "enum" in schema):
        return None
    kinds = kinds_of(schema.get("type"))
    return frozenset(canonical(option) for option in options if kind_of(option) in kinds)


def condition(site: Site) -> None:
    """Replace `if`, `then` and `else` by an `anyOf` of both cases, or record `if` as unenforced."""
    if "if" not in site.given:
        return
    then, otherwise = (site.inner(site.given.get(keyword, True), keyword) for keyword in ("then", "else"))
    if then is True and otherwise is True:
        return
    holds = site.exactly(site.given["if"], "if")
    fails = None if holds is None else complement(holds)
    if fails is None:
        site.leave("if")
        return
    assert holds is not None
    site.also(_either(_both(holds, then), _both(fails, otherwise)))


def _both(one: Schema, two: Schema) -> Schema:
    if one is False or two is False:
        return False
    members = [member for member in (one, two) if member is not True]
    return members[0] if len(members) == 1 else {"allOf": members} if members else True


def _either(one: Schema, two: Schema) -> Schema:
    if one is False or two is False:
        return two if one is False else one
    return True if True in (one, two) else {"anyOf": [one, two]}
