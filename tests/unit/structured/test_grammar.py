"""Enforceable constraints are converted, others are rejected with the reason, within a limit of work."""

from __future__ import annotations

import json
from typing import Any

import pytest
from structured_support.schemas import Case, cases

from plimsoll_runtime.engine.protocol.constraint import MOST_BYTES, Constraint, ConstraintError
from plimsoll_runtime.structured.grammar import check

CASES = cases()


def test_there_are_enough_of_them() -> None:
    assert len(CASES) >= 300
    assert len({case.name for case in CASES}) == len(CASES)
    assert sum(case.ends for case in CASES) >= 0.8 * len(CASES)


@pytest.mark.matrix(179)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_schemas_that_are_served(case: Case) -> None:
    check(Constraint.json(case.schema))


@pytest.mark.parametrize(
    "constraint",
    [
        Constraint.json(True),
        Constraint.json('{"type": "object"}'),
        Constraint.regex("a/b\\/c\"'\n"),
        Constraint.choice(["yes", 'q"', "\\", "\n", "🙂", "\u0000"]),
        Constraint.grammar('start: "x" NUM ("," NUM)*\nNUM: /[0-9]+/'),
        Constraint.grammar('root ::= "hi" [a-z]{3} (item | "none")\nitem ::= "<" [^>]+ ">"'),
        Constraint.tags({"structures": [{"begin": "<f=a>", "schema": {}, "end": "</f>"}], "triggers": ["<f="]}),
        Constraint.without(["bad", 'q"', "\\", "\n", "🙂", "\u0000", "<[7]>", "/"]),
    ],
    ids=lambda constraint: f"{constraint.kind} {constraint.source[:20]}",
)
def test_constraints_that_are_served(constraint: Constraint) -> None:
    check(constraint)


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"not": {"pattern": "^a"}}, "'/not'"),
        ({"type": "object", "propertyNames": {"pattern": "^a(?!b)"}}, "'/propertyNames'"),
        ({"if": {"pattern": "^a"}, "then": {"minLength": 3}}, "'/if'.*use anyOf"),
        ({"type": "object", "dependentRequired": {str(i): ["b"] for i in range(9)}}, "'/dependentRequired'"),
        ({"type": "array", "contains": {"type": "string"}}, "contains"),
        ({"anyOf": [{"properties": {"a": True}}, {}], "unevaluatedProperties": False}, "unevaluatedProperties"),
        ({"oneOf": [{"type": "string"}, {"minLength": 3}]}, "oneOf"),
        ({"$ref": "https://example.com/other"}, r"'/\$ref': it refers to something outside the schema"),
        ({"type": "string", "pattern": "(?=a)b"}, "'/pattern': look-ahead cannot be enforced"),
        ({"type": "string", "pattern": "(a)\\1"}, "back reference"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "no value satisfies it"),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "no value satisfies it"),
        ({"type": "object", "patternProperties": {"^a": {}, "^ab": {}}}, "let no name match two of them"),
        (
            {
                "type": "object",
                "properties": {"a": {"$ref": "#/$defs/row"}},
                "required": ["a"],
                "$defs": {"row": {"type": "array", "prefixItems": [{"type": "null", "const": 3}], "minItems": 1}},
            },
            r"at '/\$defs/row/prefixItems/0': no value satisfies it",
        ),
        ({"type": "strange"}, "strange"),
        ({"type": "object", "x-guidance": {"lenient": True}}, "x-guidance"),
        (False, "object or true"),
    ],
    ids=str,
)
def test_features_that_are_refused(schema: Any, told: str) -> None:
    with pytest.raises(ConstraintError, match=told):
        check(Constraint.json(schema))


@pytest.mark.parametrize(
    ("constraint", "told"),
    [
        (Constraint("json", "{"), "is not valid JSON"),
        (Constraint("json", "[1]"), "object or true"),
        (Constraint("json", "[" * 100_000), "is not valid JSON"),
        (Constraint("json", '{"const": "\\ud83d"}'), "unpaired surrogate"),
        (Constraint.regex("(a"), "unclosed group"),
        (Constraint.regex("a(?<=b)"), "look-behind"),
        (Constraint.choice([]), "one or more texts"),
        (Constraint.choice(["a", ""]), "none of them empty"),
        (Constraint("choice", '"a"'), "one or more texts"),
        (Constraint.choice([str(i) for i in range(2001)]), "has 2001 texts; at most 2000 are allowed"),
        (Constraint.grammar("nostart: 'a'"), "."),
        (Constraint.grammar('start: "a" | b'), 'unknown name: "b"'),
        (Constraint.grammar('%llguidance {"no_forcing": false}\nstart: "a"'), "%llguidance is not supported"),
        (Constraint.grammar("root ::= ((("), "EBNF grammar cannot be read"),
        (Constraint.tags({"structures": [], "triggers": []}), "at least one structure"),
        (Constraint.tags({"structures": [{"begin": "<a>", "schema": {}, "end": ""}], "triggers": ["<b"]}), "'<a>'"),
        (Constraint("tags", "{}"), "structures"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.kind} {value.source[:20]}",
)
def test_what_is_malformed_is_refused(constraint: Constraint, told: str) -> None:
    with pytest.raises(ConstraintError, match=told):
        check(constraint)


def test_sources_are_bounded() -> None:
    with pytest.raises(ConstraintError, match=f"has {MOST_BYTES + 1} characters; at most {MOST_BYTES} are allowed"):
        Constraint.regex("a" * (MOST_BYTES + 1))
    with pytest.raises(ConstraintError, match="not JSON serializable"):
        Constraint.json({"enum": [object()]})


def test_errors_say_nothing_of_our_own_text() -> None:
    with pytest.raises(ConstraintError) as caught:
        check(Constraint.grammar('start: "a" | b'))
    assert "no_forcing" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_text_of_a_schema_is_kept() -> None:
    assert json.loads(Constraint.json({"a": "ü"}).source) == {"a": "ü"}
    assert Constraint.json({"a": 1}) == Constraint.json('{"a":1}')
