"""Rewritten schemas accept all documents of the original; they accept others only if some keyword is listed as
unenforced.
"""

from __future__ import annotations

import json
import random
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from structured_support.drawn import schemas, values
from structured_support.walk import documents

from plimsoll_runtime.engine.protocol.constraint import Constraint, ConstraintError
from plimsoll_runtime.structured.grammar import check
from plimsoll_runtime.structured.schemas.normalise import ENFORCED, Normalised, normalise
from plimsoll_runtime.structured.schemas.types import SHAPES

TEXT = {"type": "string"}
OBJECT = {"type": "object"}
ARRAY = {"type": "array"}


def accepts(schema: Any, value: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


def rewritten(schema: Any) -> Normalised:
    """Normalise a schema after a round trip through JSON."""
    return normalise(json.loads(json.dumps(schema)))


@pytest.mark.long
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(schemas(), st.lists(values, min_size=1, max_size=6))
def test_nothing_is_lost_and_nothing_let_in(schema: dict[str, Any], tried: list[Any]) -> None:
    try:
        found = rewritten(schema)
    except ConstraintError:  # no value satisfies it
        assert not any(_accepts_or_loops(schema, value) for value in tried)
        return
    for value in tried:
        before = _accepts_or_loops(schema, value)
        if before or not found.unenforced:
            assert accepts(found.schema, value) == before, (found.schema, found.unenforced)
    try:
        again = normalise(found.schema)
    except ConstraintError:
        again = Normalised({"not": {}})
    assert not again.unenforced
    assert all(accepts(again.schema, value) == accepts(found.schema, value) for value in tried)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(schemas(), st.randoms(use_true_random=False))
def test_answers_are_of_schemas_of_which_all_is_enforced(schema: dict[str, Any], chance: random.Random) -> None:
    """The library enforces a rewritten schema exactly as the schema says."""
    constraint = Constraint.json(schema)
    words = refusal(constraint)
    if words is not None:
        assert "JSON schema" not in words, "these are the library's words"
        return
    for text in documents(constraint, 4, chance):
        assert _accepts_or_loops(schema, json.loads(text)), text


def refusal(constraint: Constraint) -> str | None:
    try:
        check(constraint)
    except ConstraintError as error:
        return str(error)
    return None


def _accepts_or_loops(schema: Any, value: Any) -> bool:
    """Validate a value. A schema that refers to itself in place has no meaning: the validator's stack overflows, or it
    panics.
    """
    try:
        return accepts(schema, value)
    except BaseException as error:
        if not isinstance(error, RecursionError) and type(error).__name__ != "PanicException":
            raise
        assume(False)
        raise


ASK_NOTHING: list[tuple[Any, Any]] = [
    (OBJECT | {"propertyNames": TEXT}, OBJECT),
    (OBJECT | {"propertyNames": {"minLength": 0, "title": "Name"}}, OBJECT),
    (OBJECT | {"propertyNames": {"$ref": "#/$defs/n"}, "$defs": {"n": TEXT}}, OBJECT),
    (OBJECT | {"minProperties": 0, "dependentRequired": {}, "dependentSchemas": {}, "dependencies": {}}, OBJECT),
    (OBJECT | {"dependentRequired": {"a": []}, "dependentSchemas": {"a": True, "b": {}}}, OBJECT),
    (OBJECT | {"required": ["a"], "minProperties": 1}, OBJECT | {"required": ["a"]}),
    (OBJECT | {"required": ["a"], "dependentRequired": {"b": ["a"]}}, OBJECT | {"required": ["a"]}),
    (OBJECT | {"unevaluatedProperties": True}, OBJECT),
    (OBJECT | {"additionalProperties": {}, "unevaluatedProperties": False}, OBJECT),
    (
        OBJECT | {"additionalProperties": False, "unevaluatedProperties": False},
        OBJECT | {"additionalProperties": False},
    ),
    (OBJECT | {"unevaluatedProperties": False}, OBJECT | {"additionalProperties": False}),
    (ARRAY | {"uniqueItems": False, "minItems": 0, "items": {}, "prefixItems": [{}, True]}, ARRAY),
    (ARRAY | {"uniqueItems": True, "maxItems": 1}, ARRAY | {"maxItems": 1}),
    (ARRAY | {"contains": TEXT, "minContains": 0}, ARRAY),
    (ARRAY | {"minContains": 2, "maxContains": 3}, ARRAY),
    (ARRAY | {"items": TEXT, "contains": TEXT}, ARRAY | {"items": TEXT, "minItems": 1}),
    (ARRAY | {"contains": True, "minItems": 2}, ARRAY | {"minItems": 2}),
    (ARRAY | {"unevaluatedItems": False}, ARRAY | {"items": False}),
    (TEXT | {"minLength": 0, "uniqueItems": True, "required": ["a"], "minimum": 3}, TEXT),
    (TEXT | {"format": "password", "pattern": "^a"}, TEXT | {"pattern": "^a"}),
    (TEXT | {"not": {"type": "null"}}, TEXT),
    (TEXT | {"not": {"not": {}}}, TEXT),
    (TEXT | {"anyOf": [{"not": {}}, {"minLength": 1}]}, TEXT | {"anyOf": [{"minLength": 1}]}),
    (TEXT | {"anyOf": [{}, {"minLength": 1}], "allOf": [{}, True]}, TEXT),
    (TEXT | {"then": {"minLength": 1}}, TEXT),
    (TEXT | {"if": {"minLength": 1}, "then": {}, "else": True}, TEXT),
    (TEXT | {"if": True, "then": {"minLength": 1}, "else": False}, TEXT | {"allOf": [{"minLength": 1}]}),
    (TEXT | {"$comment": "c", "x-mood": 1, "discriminator": {}, "nullable": True, "deprecated": True}, TEXT),
    ({"type": "integer", "maximum": 1.7976931348623157e308}, {"type": "integer"}),
    ({"type": "integer", "maximum": 2**64}, {"type": "integer", "maximum": 2**63 - 1}),
    ({"type": "number", "minimum": -1.7976931348623157e308}, {"type": "number"}),
]


@pytest.mark.parametrize(("schema", "wanted"), ASK_NOTHING, ids=str)
def test_words_that_ask_nothing(schema: Any, wanted: Any) -> None:
    found = rewritten(schema)
    assert (found.schema, found.unenforced) == (wanted, ())


def test_every_keyword_has_its_line_in_the_docs() -> None:
    table = (Path(__file__).parents[4] / "docs" / "reference" / "schemas.md").read_text().split("| keyword |")[1]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    documented = {word for row in rows for word in re.findall(r"`([$a-zA-Z]+)`", row)}
    assert ENFORCED | SHAPES.keys() <= documented


MALFORMED: list[tuple[Any, str]] = [
    (
        {"properties": {"a": {"minLength": "3"}}},
        "at '/properties/a/minLength': must be an integer of at least 0, not '3'",
    ),
    ({"items": [{"type": "text"}]}, "at '/items/0/type': must be one of null, boolean"),
    ({"anyOf": []}, "at '/anyOf': must be a list of at least one schema"),
    ({"enum": []}, "at '/enum': must be a list of at least one value"),
    ({"required": "a"}, "at '/required': must be a list of names, not 'a'"),
    ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"multipleOf": 0}}}, "at '/$defs/a~1b/multipleOf': must be a number"),
    ({"maximum": float("inf")}, "at '/maximum': must be a number"),
    ({"pattern": "(a"}, "at '/pattern': '(a' is not a regular expression: a parenthesis is not closed"),
    ({"patternProperties": {"[a": {}}}, "at '/patternProperties/[a': '[a' is not a regular expression"),
    ({"additionalProperties": None}, "at '/additionalProperties': must be a schema"),
    ([], "a schema must be a JSON object or true, not []"),
    (False, "no value satisfies false"),
    ({"not": {}}, "no document satisfies the schema"),
    ({"allOf": [{"anyOf": [False, {"not": True}]}]}, "no document satisfies the schema"),
]


@pytest.mark.parametrize(("schema", "words"), MALFORMED, ids=str)
def test_what_is_malformed_is_refused_with_its_place(schema: Any, words: str) -> None:
    with pytest.raises(ConstraintError) as refused:
        normalise(schema)
    assert words in str(refused.value)


UNENFORCED: list[tuple[Any, list[str]]] = [
    ({"items": {"uniqueItems": True}}, ["/items/uniqueItems"]),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, ["/oneOf"]),
    ({"oneOf": [{"pattern": "a(?!b)"}, {"type": "null"}]}, ["/oneOf/0/pattern", "/oneOf"]),
    ({"$ref": "https://example.com/s"}, ["/$ref"]),
    ({"$ref": "#/nowhere"}, ["/$ref"]),
    ({"properties": {"a~b": {"not": {"pattern": "x"}}}}, ["/properties/a~0b/not"]),
    ({"const": 2**53 + 1}, ["/const"]),
    ({"type": "number", "minimum": 10**19}, ["/minimum"]),
    ({"multipleOf": 1e-10}, ["/multipleOf"]),
    ({"patternProperties": {"a(?!b)": {}}, "additionalProperties": False}, ["/additionalProperties"]),
    ({"patternProperties": {"a(?!b)": TEXT}}, ["/patternProperties/a(?!b)"]),
    ({"properties": {"a": {}, "b": {}}, "minProperties": 1}, ["/minProperties"]),
    ({"properties": {"a": {}}, "propertyNames": {"pattern": "a"}}, ["/propertyNames"]),
    ({"anyOf": [{"properties": {"a": TEXT}}, TEXT], "unevaluatedProperties": False}, ["/unevaluatedProperties"]),
    ({"if": {"pattern": "a"}, "else": {"maxLength": 3}}, ["/if"]),
]


@pytest.mark.parametrize(("schema", "places"), UNENFORCED, ids=str)
def test_what_is_not_enforced_is_named(schema: Any, places: list[str]) -> None:
    assert [each.pointer for each in rewritten(schema).unenforced] == places


def test_branches_that_cannot_both_hold_are_told_apart() -> None:
    def kind(name: str, **more: Any) -> dict[str, Any]:
        return OBJECT | {"properties": {"kind": {"const": name}} | more, "required": ["kind"]}

    many = [kind(str(index)) for index in range(500)]
    apart: list[list[Any]] = [
        many,
        [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}, {"type": "null"}],
        [{"enum": [1, "a"]}, {"enum": [2, None]}, {"const": 3.0}],
        [{"maximum": 2, "type": "integer"}, {"minimum": 3, "type": "number"}],
        [OBJECT | {"required": ["x"]}, OBJECT | {"properties": {"y": {}}, "additionalProperties": False}],
        [{"allOf": [kind("a"), {"required": ["z"]}]}, {"anyOf": [kind("b"), kind("c")]}],
        [kind("a", inner=kind("x")), kind("b"), TEXT, ARRAY],
    ]
    definitions = {"a": kind("a"), "b": {"allOf": [{"$ref": "#/$defs/c"}]}, "c": kind("b")}
    for branches in apart:
        assert not rewritten({"oneOf": branches, "$defs": definitions}).unenforced, branches
    overlap: list[list[Any]] = [
        [*many, kind("7")],
        [{"const": 1}, {"const": 1.0}],
        [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}],
        [OBJECT | {"properties": {"kind": {"const": name}}} for name in "ab"],
        [{"required": ["a"]}, {"not": {"required": ["a"]}}],
        [{"$ref": "#"}, TEXT],
    ]
    for branches in overlap:
        assert rewritten({"oneOf": branches, "$defs": definitions}).unenforced, branches


def test_references_are_followed_wherever_they_lead() -> None:
    schema = {
        "$id": "https://example.com/root",
        "$defs": {
            "inner": {"$id": "inner", "$defs": {"deep": {"maxLength": 2}}, "$ref": "#/$defs/deep"},
            "named": {"$anchor": "here", "type": "string"},
            "node": {"$dynamicAnchor": "node", "type": "null"},
        },
        "components": {"schemas": {"x": {"const": 7}}},
        "prefixItems": [
            {"$ref": "inner"},
            {"$ref": "https://example.com/inner#/$defs/deep"},
            {"$ref": "#here"},
            {"$dynamicRef": "#node"},
            {"$ref": "#/components/schemas/x"},
            {"$ref": "#/prefixItems/4"},
            {"$ref": "#/%24defs/named"},
        ],
    }
    found = rewritten(schema)
    assert not found.unenforced
    assert accepts(found.schema, ["ab", "ab", "x", None, 7, 7, "y"])
    for index, wrong in enumerate(["abc", "abc", 3, 0, 8, 8, 1]):
        assert not accepts(found.schema, [*["ab", "ab", "x", None, 7, 7, "y"][:index], wrong])


def test_drafts_before_2019_know_fewer_words() -> None:
    old = {"$schema": "http://json-schema.org/draft-07/schema#"}
    schema = {
        **old,
        "definitions": {"t": TEXT},
        "items": [{"$ref": "#/definitions/t", "maxLength": 0}],
        "additionalItems": False,
        "prefixItems": [False],
        "dependentRequired": {"a": ["b"]},
    }
    found = rewritten(schema)
    assert not found.unenforced
    for value in (["long"], [], ["a", "b"], [3], {"a": 1}):
        assert accepts(found.schema, value) == jsonschema.Draft7Validator(schema).is_valid(value), value


def chain(count: int, kind: str) -> dict[str, Any]:
    twice = [{"$ref": "#/$defs/d%d"}] * 2
    made = {f"d{i}": {kind: json.loads(json.dumps(twice) % (i + 1, i + 1))} for i in range(count)}
    return {"$ref": "#/$defs/d0", "$defs": {**made, f"d{count}": TEXT}}


def nested(depth: int) -> dict[str, Any]:
    found: dict[str, Any] = TEXT
    for _ in range(depth):
        found = {"properties": {"a": found}, "required": ["a"], "type": "object", "additionalProperties": False}
    return found


def fields(count: int) -> dict[str, Any]:
    inner = {"oneOf": [{"const": "a"}, {"type": "integer"}], "not": {"type": "null"}, "title": "T"}
    return OBJECT | {"properties": {f"p{i}": inner for i in range(count)}, "propertyNames": TEXT}


LARGE: dict[str, Callable[[int], Any]] = {
    "everything twice": lambda size: chain(size, "allOf"),
    "either of two": lambda size: chain(size, "anyOf"),
    "one of two": lambda size: chain(size, "oneOf"),
    "branches": lambda size: {"anyOf": [{"maxLength": i} for i in range(size)]},
    "one of many": lambda size: {"oneOf": [OBJECT | {"required": [f"r{i}"]} for i in range(size)]},
    "one of many values": lambda size: {"oneOf": [{"const": i} for i in range(size)]},
    "all of many": lambda size: {"allOf": [{"required": [f"r{i}"]} for i in range(size)]},
    "names": lambda size: (
        OBJECT | {"propertyNames": {"enum": [str(i) for i in range(size)]}, "additionalProperties": nested(20)}
    ),
    "fields": fields,
    "references to parts": lambda size: {
        "allOf": [{"$ref": f"#/$defs/x{i}/items/items"} for i in range(size)],
        "$defs": {f"x{i}": {"items": {"items": {"items": {"$ref": f"#/$defs/x{i}"}}}} for i in range(size)},
    },
    "dependencies": lambda size: OBJECT | {"dependentRequired": {f"a{i}": [f"b{i}"] for i in range(size)}},
    "evaluated": lambda size: chain(size, "allOf") | {"unevaluatedProperties": False},
    "a long pattern": lambda size: TEXT | {"pattern": "^" + "(a|[b-d]{2,3}?)" * size},
}


@pytest.mark.matrix(2)
@pytest.mark.parametrize("kind", LARGE)
def test_the_work_grows_with_the_schema_and_no_faster(kind: str) -> None:
    """A schema eight times as large takes at most nine times the calls."""
    small, large = (calls_of(json.dumps(LARGE[kind](size))) for size in (400, 3200))
    assert large <= 9 * small


def calls_of(text: str) -> int:
    """Return the number of function calls for rewriting a schema."""
    schema, calls = json.loads(text), 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        found = normalise(schema)
    finally:
        sys.setprofile(None)
    assert len(json.dumps(found.schema)) <= 6 * len(text) + 1000
    return calls


@pytest.mark.long
def test_a_hundred_thousand_branches_take_seconds_at_most() -> None:
    started = time.process_time()
    normalise({"anyOf": [{"maxLength": index} for index in range(100_000)]})
    assert time.process_time() - started < 20


def test_what_is_nested_too_deeply_is_refused() -> None:
    normalise(nested(90))
    for depth in (101, 5000):
        with pytest.raises(ConstraintError, match="nested too deeply"):
            normalise(nested(depth))
