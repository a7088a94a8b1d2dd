"""Hypothesis strategies of schemas with every keyword, and of values that some of them accept."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

NAMES = ("a", "b", "c", "ab")
PATTERNS = ("^a", "b$", "^[ab]{1,2}$", "^(?!a)b", "c", "a(?!b)", "^(?=.b)")
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
REFERENCES = ("#", "#/$defs/x", "#/$defs/y", "#/properties/a", "#/allOf/0", "#anchor")

_COUNT = st.integers(0, 3)
_NUMBER = st.one_of(st.integers(-2, 4), st.sampled_from([0.5, 1.5, 2.0]))
_NAME = st.sampled_from(NAMES)
_NAMES = st.lists(_NAME, max_size=2, unique=True)

values = st.recursive(
    st.one_of(st.none(), st.booleans(), _NUMBER, st.sampled_from(["", "a", "b", "ab", "c", "bb"])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_NAME, inner, max_size=3)),
    max_leaves=5,
)
"""Small JSON values made of the same words as the schemas, so that schemas accept many of them."""

_LEAVES: dict[str, st.SearchStrategy[Any]] = {
    "type": st.one_of(st.sampled_from(TYPES), st.lists(st.sampled_from(TYPES), min_size=1, max_size=3, unique=True)),
    "const": values,
    "enum": st.lists(values, min_size=1, max_size=3),
    "minimum": _NUMBER,
    "maximum": _NUMBER,
    "exclusiveMinimum": _NUMBER,
    "exclusiveMaximum": _NUMBER,
    "multipleOf": st.sampled_from([1, 2, 0.5]),
    "minLength": _COUNT,
    "maxLength": _COUNT,
    "pattern": st.sampled_from(PATTERNS),
    "format": st.sampled_from(["word", "password"]),
    "minItems": _COUNT,
    "maxItems": _COUNT,
    "uniqueItems": st.booleans(),
    "minContains": _COUNT,
    "maxContains": _COUNT,
    "required": _NAMES,
    "minProperties": _COUNT,
    "maxProperties": _COUNT,
    "dependentRequired": st.dictionaries(_NAME, _NAMES, max_size=2),
    "$ref": st.sampled_from(REFERENCES),
    "title": st.just("T"),
    "default": values,
}


def _with(inner: st.SearchStrategy[Any]) -> dict[str, st.SearchStrategy[Any]]:
    some, many = st.lists(inner, min_size=1, max_size=3), st.dictionaries(_NAME, inner, max_size=2)
    one = ("additionalProperties", "propertyNames", "unevaluatedProperties", "items", "unevaluatedItems", "contains")
    return (
        _LEAVES
        | dict.fromkeys((*one, "not", "if", "then", "else"), inner)
        | dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), some)
        | dict.fromkeys(("properties", "dependentSchemas"), many)
        | {"patternProperties": st.dictionaries(st.sampled_from(PATTERNS), inner, max_size=2)}
    )


@st.composite
def _schema(draw: st.DrawFn, keywords: dict[str, st.SearchStrategy[Any]], most: int) -> Any:
    names = draw(st.lists(st.sampled_from(sorted(keywords)), max_size=most, unique=True))
    return {name: draw(keywords[name]) for name in names}


_parts = st.recursive(
    st.one_of(st.booleans(), _schema(_LEAVES, 3)), lambda inner: _schema(_with(inner), 4), max_leaves=6
)


@st.composite
def schemas(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a document whose references all resolve."""
    whole: dict[str, Any] = dict(draw(_schema(_with(_parts), 5)))
    properties = whole.setdefault("properties", {})
    properties.setdefault("a", draw(_parts))
    whole.setdefault("allOf", [draw(_parts)])
    whole["$defs"] = {"x": draw(_parts), "y": {"$anchor": "anchor"} | dict(draw(_schema(_LEAVES, 2)))}
    return whole
