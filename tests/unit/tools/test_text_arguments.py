"""Arguments written one by one, with texts unquoted: schemas are enforced, or rejected with the reason."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tool_support.reading import read
from tool_support.walk import SpecialId, Walk, wander

from plimsoll_runtime.engine.protocol.constraint import Constraint, ConstraintError
from plimsoll_runtime.structured.grammar import to_llguidance
from plimsoll_runtime.tools.base import Tool
from plimsoll_runtime.tools.registry import FORMATS

if TYPE_CHECKING:
    from llguidance import LLTokenizer

WORDS = ["type", "properties", "required", "enum", "const", "anyOf", "pattern", "format", "minLength", "maxLength"]
KEYS = st.sampled_from([*WORDS, "$ref", "$defs", "x", "items", "title"])
PLAIN = ("qwen3_coder", "seed_oss", "glm4", "minimax", "gemma4", "functiongemma", "llama4_pythonic", "gemma3")
QUOTED = ("gemma4", "functiongemma")
TAGGED = ("qwen3_coder", "glm4", "minimax")

VALUES: dict[str, Any] = {
    "lengths": {"type": "string", "minLength": 2, "maxLength": 4},
    "pattern": {"type": "string", "pattern": r"^[a-c]\d{2}$"},
    "pattern within": {"type": "string", "pattern": "a[01]b", "maxLength": 6},
    "enum": {"enum": ["<", "one two", "0"]},
    "const": {"const": "x/y"},
    "format": {"type": "string", "format": "date"},
    "reference": {"$ref": "#/$defs/unit", "description": "Which."},
    "texts": {"anyOf": [{"$ref": "#/$defs/unit"}, {"type": "string", "maxLength": 2}]},
    "maybe": {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]},
    "mixed": {"enum": ["1", 1, None]},
    "objects": {"type": "array", "items": {"$ref": "#/$defs/point"}, "maxItems": 2},
    "integer": {"type": "integer", "minimum": -20, "maximum": 3},
}
DEFINITIONS = {
    "unit": {"enum": ["a", "b"]},
    "point": {
        "type": "object",
        "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 9}, "s": {"type": "string", "maxLength": 2}},
        "required": ["x", "s"],
        "additionalProperties": False,
    },
}


def tool(values: dict[str, Any], **more: Any) -> Tool:
    schema = {"type": "object", "properties": {f"p{i}": v for i, v in enumerate(values.values())}, "$defs": DEFINITIONS}
    return Tool("f", None, schema | more)


@pytest.mark.matrix(2)
@pytest.mark.parametrize("name", PLAIN)
def test_what_a_grammar_lets_through_is_of_the_schema(name: str, spelling: LLTokenizer, special_id: SpecialId) -> None:
    chance = random.Random(name)
    for says, value in VALUES.items():
        given = tool({says: value}, required=["p0"])
        source = FORMATS[name].grammar([given], special_id, required=True, parallel=False)
        for _ in range(3):
            text = wander(Walk(source, spelling, special_id), chance)
            [call] = read(FORMATS[name], [given], [text])
            assert isinstance(call, tuple), text
            jsonschema.validate(json.loads(call[1]), given.parameters)


@pytest.mark.matrix(3)
@pytest.mark.parametrize("name", PLAIN)
def test_what_is_not_required_may_be_missing(name: str, spelling: LLTokenizer, special_id: SpecialId) -> None:
    chance = random.Random(name)
    given = tool({str(i): {"const": i} for i in range(4)}, required=["p2"])
    source = FORMATS[name].grammar([given], special_id, required=True, parallel=False)
    seen = set()
    for _ in range(40):
        [call] = read(FORMATS[name], [given], [wander(Walk(source, spelling, special_id), chance)])
        found = json.loads(call[1])
        jsonschema.validate(found, given.parameters)
        seen.add(tuple(found))
    assert len(seen) > 1


@pytest.mark.parametrize("name", TAGGED)
def test_texts_that_are_nothing_else_are_written_as_they_are(
    name: str, spelling: LLTokenizer, special_id: SpecialId
) -> None:
    """If text or null is allowed, every text is a valid value."""
    loose = {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}
    given = tool({"a": loose, "b": {"type": ["string", "integer"]}, "c": {}}, required=["p0", "p1", "p2"])
    source = FORMATS[name].grammar([given], special_id, required=True, parallel=False)
    ends = {
        "qwen3_coder": ("<parameter=%s>\n%s\n</parameter>\n", "<tool_call>\n<function=f>\n%s</function>\n</tool_call>")
    }
    ends["glm4"] = ("\n<arg_key>%s</arg_key>\n<arg_value>%s</arg_value>", "<tool_call>f%s\n</tool_call>")
    ends["minimax"] = (
        '<parameter name="%s">%s</parameter>\n',
        '<minimax:tool_call>\n<invoke name="f">\n%s</invoke>\n</minimax:tool_call>',
    )
    field, around = ends[name]
    text = around % "".join(field % pair for pair in (("p0", "null"), ("p1", "a < b"), ("p2", '{"x": [1]}')))
    walk = Walk(source, spelling, special_id)
    assert walk.takes(text) == len(text)
    assert read(FORMATS[name], [given], [text]) == [("f", '{"p0": null, "p1": "a < b", "p2": {"x": [1]}}')]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"type": "string", "format": "email"}, "the format 'email'"),
    ({"type": "string", "pattern": "^a|b$"}, r"the pattern '\^a\|b\$'"),
    ({"type": "string", "pattern": "a$b"}, "the pattern"),
    ({"type": "string", "contentEncoding": "base64"}, "'contentEncoding'"),
    ({"oneOf": [{"const": "a"}, {"const": "b"}]}, "'oneOf'"),
]


@pytest.mark.parametrize("name", TAGGED + QUOTED)
@pytest.mark.parametrize(("value", "told"), REFUSED, ids=[told for _, told in REFUSED])
def test_what_cannot_be_enforced_is_refused_by_name(name: str, value: Any, told: str, special_id: SpecialId) -> None:
    with pytest.raises(ConstraintError, match=told):
        FORMATS[name].grammar([tool({"x": value})], special_id, required=True, parallel=False)


@pytest.mark.parametrize("name", PLAIN)
def test_what_a_whole_call_cannot_be_kept_to_is_refused(name: str, special_id: SpecialId) -> None:
    for more, told in (({"minProperties": 1}, "f: 'minProperties'"), ({"anyOf": [{"required": ["p0"]}]}, "f: 'anyOf'")):
        with pytest.raises(ConstraintError, match=told):
            FORMATS[name].grammar([tool({"x": {}}, **more)], special_id, required=True, parallel=False)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 9)
    | st.sampled_from(["string", "a", "^a$", "#/$defs/x", "object", "\n/"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None, max_examples=150)
@given(name=st.sampled_from(sorted(FORMATS)), parameters=st.dictionaries(KEYS, JSON, max_size=5))
def test_whatever_a_schema_says(name: str, parameters: dict[str, Any]) -> None:
    """The result is a valid grammar, or an error that says what is wrong."""
    try:
        source = FORMATS[name].grammar([Tool("f", None, parameters)], lambda marker: None, required=True, parallel=True)
        to_llguidance(Constraint("lark", source)).encode()
    except ConstraintError as error:
        said = str(error)
    else:
        said = source
    assert said


def test_a_text_that_holds_its_end_is_refused(special_id: SpecialId) -> None:
    value = {"const": "a</parameter>"}
    with pytest.raises(ConstraintError, match=r"contains .*, the end marker of texts"):
        FORMATS["minimax"].grammar([tool({"x": value})], special_id, required=True, parallel=False)


@pytest.mark.parametrize("name", ["llama4_pythonic", "gemma3"])
def test_names_that_are_no_keywords_are_refused(name: str, special_id: SpecialId) -> None:
    given = Tool("f", None, {"properties": {"a b": {}}})
    with pytest.raises(ConstraintError, match="'a b' cannot be a keyword"):
        FORMATS[name].grammar([given], special_id, required=True, parallel=False)


@pytest.mark.parametrize("name", PLAIN)
def test_arguments_that_must_be_missing_are(name: str, special_id: SpecialId) -> None:
    without = FORMATS[name].grammar([tool({"x": {"type": "integer"}})], special_id, required=True, parallel=False)
    given = tool({"x": {"type": "integer"}, "never": False})
    assert FORMATS[name].grammar([given], special_id, required=True, parallel=False) == without
    given = tool({"x": {"type": "integer"}, "never": False}, required=["p1"])
    with pytest.raises(ConstraintError, match="the schema of 'p1' allows no value"):
        FORMATS[name].grammar([given], special_id, required=True, parallel=False)
