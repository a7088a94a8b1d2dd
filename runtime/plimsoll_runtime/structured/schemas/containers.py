"""Rewrites the keywords of objects and arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from plimsoll_runtime.structured.schemas.context import Schema, Site
from plimsoll_runtime.structured.schemas.problems import MOST_DEPENDENCIES, REASONS
from plimsoll_runtime.structured.schemas.references import evaluated
from plimsoll_runtime.structured.schemas.scalars import pattern_problem
from plimsoll_runtime.structured.schemas.types import ALL, OF_TYPE, SHAPES, canonical, kinds_of, types_of

_UUID = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
_NO_OBJECT = {"type": types_of(ALL - {"object"})}
_MOST_STEPS = 8


def objects(site: Site) -> None:
    """Rewrite all keywords of objects from `site.given` to `site.out`."""
    if "object" not in site.kinds:
        return
    given, out = site.given, site.out
    properties = {name: site.inner(each, "properties", name) for name, each in given.get("properties", {}).items()}
    patterns, kept = _patterns(site)
    word = "additionalProperties" if "additionalProperties" in given else "unevaluatedProperties"
    further = site.inner(given.get("additionalProperties", True), word) if word in given else True
    if word in given and word != "additionalProperties":
        further = _unevaluated_properties(site)
    if not kept and further is not True:
        site.leave(word, REASONS["additionalProperties"])
        further = True
    if "propertyNames" in given:
        further = _names(site, properties, patterns, further)
    required = list(dict.fromkeys([*given.get("required", ()), *_always(site)]))
    if properties:
        out["properties"] = properties
    if patterns:
        out["patternProperties"] = patterns
    if further is not True:
        out["additionalProperties"] = further
    if required:
        out["required"] = required
    _sizes(site)
    _dependencies(site)


def _patterns(site: Site) -> tuple[dict[str, Schema], bool]:
    """Return the enforceable `patternProperties`, and whether they are complete."""
    given = site.given.get("patternProperties", {})
    if site.caution and len(given) > 1:
        site.leave("patternProperties")
        return {}, False
    found, kept = {}, True
    for pattern, each in given.items():
        place = site.place.at("patternProperties", pattern)
        problem = pattern_problem(pattern, place)
        if problem is None:
            found[pattern] = site.rewrite(each, place)
        elif each is not True and each != {}:
            site.leave(pattern, problem, site.place.at("patternProperties"))
            kept = False
        else:
            kept = False
    return found, kept


def _unevaluated_properties(site: Site) -> Schema:
    """Return the value of `additionalProperties` that replaces `unevaluatedProperties`: True if a further schema
    enforces it, or nothing does.
    """
    given: Schema = site.given["unevaluatedProperties"]
    if given is True or given == {}:
        return True
    if site.is_alone("not"):
        return site.inner(given, "unevaluatedProperties")
    known = evaluated(site.given, site.signatures.references)
    if known is None or any(pattern_problem(pattern, site.place) for pattern in known.patterns):
        site.leave("unevaluatedProperties")
    elif not known.all:
        closed: dict[str, Any] = {"type": "object"} if site.kinds == OF_TYPE["object"] else {}
        closed["properties"] = dict.fromkeys(known.names, True)
        if known.patterns:
            closed["patternProperties"] = dict.fromkeys(known.patterns, True)
        site.also(closed | {"additionalProperties": site.inner(given, "unevaluatedProperties")})
    return True


def _names(site: Site, properties: dict[str, Schema], patterns: dict[str, Schema], further: Schema) -> Schema:
    """Enforce `propertyNames` through the other keywords, including names in `properties`. Return the remaining value
    of `additionalProperties`.
    """
    given: Schema = site.given["propertyNames"]
    if given is False:
        properties.update(dict.fromkeys(properties, False))
        patterns.clear()
        return False
    words = _words(site, given)
    if not words:
        return further
    listed = _listed(words)
    if listed is not None and not patterns and "patternProperties" not in site.given:
        for name in properties.keys() - listed:
            properties[name] = False
        shared = site.share(further)
        properties.update({name: shared for name in listed if name not in properties})
        return False
    pattern = None if properties or "patternProperties" in site.given else _pattern(words)
    if pattern is not None and pattern_problem(pattern, site.place.at("propertyNames", "pattern")) is None:
        patterns[pattern] = further
        return False
    site.leave("propertyNames")
    return further


def _words(site: Site, given: Schema) -> Mapping[str, Any]:
    """Return the keywords of the schema that names must satisfy, after following references; {} if all names are
    allowed.
    """
    for _ in range(_MOST_STEPS):
        target = None if isinstance(given, bool) else site.signatures.references.target(given)
        if target is None or given.keys() & SHAPES.keys() != {"$ref"}:  # type: ignore[union-attr]
            break
        given = target.schema
    if isinstance(given, bool):
        return {} if given else {"not": {}}
    of_texts = "string" in kinds_of(given.get("type"))
    asked = {k: v for k, v in given.items() if k in SHAPES and not (k == "minLength" and not v)}
    return {k: v for k, v in asked.items() if k != "type"} if of_texts else asked


def _listed(words: Mapping[str, Any]) -> list[str] | None:
    """Return the allowed names in order, if the schema lists them, else None."""
    if words.keys() == {"const"}:
        return [words["const"]] if isinstance(words["const"], str) else []
    if words.keys() == {"enum"}:
        return list(dict.fromkeys(value for value in words["enum"] if isinstance(value, str)))
    return None


def _pattern(words: Mapping[str, Any]) -> str | None:
    """Return a pattern for the allowed names, or None."""
    if "pattern" in words and words.keys() <= {"pattern", "format"}:
        return str(words["pattern"])
    if words.keys() <= {"minLength", "maxLength"}:
        most = words.get("maxLength")
        return rf"^[\s\S]{{{int(words.get('minLength', 0))},{'' if most is None else int(most)}}}$"
    return _UUID if words == {"format": "uuid"} else None


def _sizes(site: Site) -> None:
    """Enforce `minProperties` and `maxProperties` if llguidance can count the properties."""
    out, required = site.out, set(site.out.get("required", ()))
    least, most = int(site.given.get("minProperties", 0)), site.given.get("maxProperties")
    if most is not None and most <= len(required):  # no optional properties are possible
        out["properties"] = {name: each for name, each in out.get("properties", {}).items() if name in required}
    names = {name for name, each in out.get("properties", {}).items() if each is not False} | required
    closed = out.get("additionalProperties") is False and "patternProperties" not in out
    if least <= len(required):
        least = 0
    if most == 0 and not required:
        out["additionalProperties"] = False
        out.pop("patternProperties", None)
        most = None
    elif most is not None and closed and len(names) <= most:
        most = None
    few = closed and (most == 1 or (most is None and least <= 1))
    counted = (out.get("properties", {}).keys() <= required or few) and not site.caution
    for keyword, count in (("minProperties", least or None), ("maxProperties", most)):
        if count is not None and counted:
            out[keyword] = int(count)
        elif count is not None:
            site.leave(keyword)


def _always(site: Site) -> list[str]:
    """Return the names that `dependentRequired` or `dependencies` demand because of a name that is always required."""
    required = set(site.given.get("required", ()))
    return [name for key, names, _ in _named(site) if key in required for name in names]


def _named(site: Site) -> Iterator[tuple[str, list[str], str]]:
    """Yield (name, others, keyword) of `dependentRequired` and `dependencies`: an object with `name` must have the
    others.
    """
    for keyword in ("dependentRequired", "dependencies"):
        for key, names in site.given.get(keyword, {}).items():
            if isinstance(names, list):
                yield key, names, keyword


def _dependencies(site: Site) -> None:
    required = set(site.out.get("required", ()))
    asked: list[tuple[str, Schema, str]] = []
    for key, names, keyword in _named(site):
        missing = [name for name in names if name not in required]
        if missing and key not in required:
            asked.append((key, {"required": missing}, keyword))
    for keyword in ("dependentSchemas", "dependencies"):
        for key, given in site.given.get(keyword, {}).items():
            if isinstance(given, list):
                continue
            found = site.inner(given, keyword, key)
            if key in required:
                site.also(found if site.kinds == OF_TYPE["object"] else {"anyOf": [_NO_OBJECT, found]})
            elif found is not True:
                asked.append((key, found, keyword))
    kind: dict[str, Any] = {"type": "object"} if site.kinds == OF_TYPE["object"] else {}
    for key, then, _ in asked[:MOST_DEPENDENCIES]:
        branches = [kind | {"properties": {key: False}}]
        if isinstance(then, Mapping):
            branches.append({**kind, **then})
        site.also({"anyOf": branches})
    for keyword in dict.fromkeys(keyword for _, _, keyword in asked[MOST_DEPENDENCIES:]):
        site.leave(keyword)


def arrays(site: Site) -> None:
    """Rewrite all keywords of arrays from `site.given` to `site.out`."""
    if "array" not in site.kinds:
        return
    _items(site)
    for keyword in ("minItems", "maxItems"):
        if site.given.get(keyword) or (keyword == "maxItems" and keyword in site.given):
            site.out[keyword] = int(site.given[keyword])
    _contains(site)
    if site.given.get("uniqueItems") and not _is_short(site):
        site.leave("uniqueItems")


def _items(site: Site) -> None:
    given = site.given
    items, prefix = given.get("items", True), given.get("prefixItems", ())
    name = "items"
    if isinstance(items, list):  # syntax of drafts before 2020
        prefix, items = items, given.get("additionalItems", True)
        name = "additionalItems"
    source = "items" if name == "additionalItems" else "prefixItems"
    first = [site.inner(each, source, index) for index, each in enumerate(prefix)]
    if name not in given and "unevaluatedItems" in given:
        name, items = "unevaluatedItems", _unevaluated_items(site)
    rest = site.inner(items, name)
    while first and first[-1] is True and rest is True:
        first.pop()
    if first:
        site.out["prefixItems"] = first
    if rest is not True:
        site.out["items"] = rest


def _unevaluated_items(site: Site) -> Schema:
    """Return the value of `items` that replaces `unevaluatedItems`."""
    given: Schema = site.given["unevaluatedItems"]
    if given is True or given == {}:
        return True
    if site.is_alone("not") and "contains" not in site.given:
        return given
    site.leave("unevaluatedItems")
    return True


def _contains(site: Site) -> None:
    given = site.given.get("contains")
    if given is None:
        return
    least, most = int(site.given.get("minContains", 1)), site.given.get("maxContains")
    if not least and most is None:
        return
    if given is True or given == {} or _are_all(site, given):
        if least:
            site.out["minItems"] = max(least, site.out.get("minItems", 0))
        if most is not None:
            site.out["maxItems"] = min(int(most), site.out.get("maxItems", int(most)))
        return
    site.leave("contains")


def _are_all(site: Site, wanted: Schema) -> bool:
    """Return whether `items` already requires each item to satisfy the schema."""
    items = site.given.get("items")
    return isinstance(items, dict) and "prefixItems" not in site.given and canonical(items) == canonical(wanted)


def _is_short(site: Site) -> bool:
    """Return whether there cannot be two items."""
    most = site.out.get("maxItems")
    if site.out.get("items") is False:
        length = len(site.out.get("prefixItems", ()))
        most = length if most is None else min(most, length)
    return most is not None and most <= 1
