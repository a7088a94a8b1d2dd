"""Keywords that are not enforced are named in a header, and refused if `strict` is true."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from plimsoll_runtime.text.tokenizer import Tokenizer

from ..conftest import running_server, template

pytestmark = pytest.mark.asyncio(loop_scope="module")
HEADER = "x-plimsoll-ignored"
TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}{% for m in messages %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}"
    "{% endfor %}"
)
SETS = {
    "type": "object",
    "properties": {"a/b": {"type": "array", "uniqueItems": True, "items": {"pattern": "^a(?!x)", "type": "string"}}},
}
PLACES = ["/properties/a~1b/items/pattern", "/properties/a~1b/uniqueItems"]
STRICT = "at '/properties/a~1b/items/pattern': look-ahead cannot be enforced: remove it from the pattern (and 1"
HELLO = [{"role": "user", "content": "Hi"}]
ASK: dict[str, Any] = {"model": "fake", "prompt": "Hi"}
CHAT: dict[str, Any] = {"model": "fake", "messages": HELLO}
SAID = {"model": "fake", "input": "Hi"}
MESSAGE = {"model": "fake", "max_tokens": 9, "messages": HELLO}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def calling(tokenizer: Tokenizer) -> AsyncIterator[Any]:
    with template(tokenizer, TEMPLATE):
        async with running_server(tokenizer) as running:
            yield running


def form(**strict: bool) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SETS, **strict}}}


def text(**strict: bool) -> dict[str, Any]:
    return {"text": {"format": {"type": "json_schema", "name": "n", "schema": SETS, **strict}}}


def chat_tools(**strict: bool) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "sets", "parameters": SETS, **strict}}]


def response_tools(**strict: bool) -> list[dict[str, Any]]:
    return [{"type": "function", "name": "sets", "parameters": SETS, **strict}]


TAG = {"structures": [{"begin": "<a>", "schema": SETS, "end": ""}], "triggers": ["<a"]}
IN_TAGS = "structured_outputs.structural_tag/structures/0/schema"
IN_TOOLS = "tools[sets].function.parameters"
IN_CHAT = "response_format.json_schema.schema"
LOOSE = {
    "chat": ("chat/completions", CHAT | form(), IN_CHAT),
    "chat, said": ("chat/completions", CHAT | form(strict=False), IN_CHAT),
    "completions": ("completions", ASK | form(), IN_CHAT),
    "guided": ("completions", ASK | {"structured_outputs": {"json": SETS}}, "structured_outputs.json"),
    "tags": ("chat/completions", CHAT | {"structured_outputs": {"structural_tag": TAG}}, IN_TAGS),
    "tools": ("chat/completions", CHAT | {"tools": chat_tools()}, IN_TOOLS),
    "functions": (
        "chat/completions",
        CHAT | {"functions": [{"name": "sets", "parameters": SETS}]},
        "functions[sets].parameters",
    ),
    "a tool that is required": (
        "chat/completions",
        CHAT | {"tools": chat_tools(), "tool_choice": "required"},
        IN_TOOLS,
    ),
    "responses": ("responses", SAID | text(), "text.format.schema"),
    "tools of responses": ("responses", SAID | {"tools": response_tools()}, "tools[sets].parameters"),
    "messages": (
        "messages",
        MESSAGE | {"output_config": {"format": {"type": "json_schema", "schema": SETS}}},
        "output_config.format.schema",
    ),
    "tools of messages": (
        "messages",
        MESSAGE | {"tools": [{"name": "sets", "input_schema": SETS}]},
        "tools[sets].input_schema",
    ),
}


@pytest.mark.matrix(11)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("way", LOOSE)
async def test_it_is_named_in_the_header(calling: Any, way: str, stream: bool) -> None:
    path, body, where = LOOSE[way]
    calling.engine.reset()
    async with calling.http() as http:
        answer = await http.post(f"/v1/{path}", json=body | {"stream": stream})
    assert answer.status_code == 200, answer.text
    told = answer.headers[HEADER].split(", ")
    assert len(told) == len(PLACES)
    for shown, place in zip(sorted(told), sorted(PLACES), strict=True):
        whole = where + place
        begin, _, end = shown.partition("...")
        assert (whole == shown) or (len(whole) > 80 and whole.startswith(begin) and whole.endswith(end))
    [asked] = calling.engine.asked
    assert asked.context.params.constraint is not None


ASKED = {
    "chat": ("chat/completions", CHAT | form(strict=True), "response_format"),
    "completions": ("completions", ASK | form(strict=True), "response_format"),
    "tools": ("chat/completions", CHAT | {"tools": chat_tools(strict=True)}, "tools"),
    "a tool that is required": (
        "chat/completions",
        CHAT | {"tools": chat_tools(strict=True), "tool_choice": "required"},
        "tools",
    ),
    "a form beside tools": (
        "chat/completions",
        CHAT | {"tools": [{"type": "function", "function": {"name": "f"}}]} | form(strict=True),
        "response_format",
    ),
    "responses": ("responses", SAID | text(strict=True), "text.format"),
    "tools of responses": ("responses", SAID | {"tools": response_tools(strict=True)}, "tools"),
    "tools of messages": ("messages", MESSAGE | {"tools": [{"name": "s", "input_schema": SETS, "strict": True}]}, None),
}


@pytest.mark.parametrize("way", ASKED)
async def test_it_is_refused_where_all_must_be_enforced(calling: Any, way: str) -> None:
    path, body, param = ASKED[way]
    calling.engine.reset()
    async with calling.http() as http:
        for stream in (False, True):
            answer = await http.post(f"/v1/{path}", json=body | {"stream": stream})
            error = answer.json()["error"]
            assert answer.status_code == 400, error
            assert STRICT in error["message"]
            assert error.get("param") == param
    assert calling.engine.asked == []


CAUTIOUS: dict[str, tuple[dict[str, Any], str]] = {
    "patterns that overlap": (
        {"type": "object", "patternProperties": {"^a": {"type": "null"}, "b$": {}}, "additionalProperties": False},
        "/patternProperties, X/additionalProperties",
    ),
    "a count that another part makes hard": (
        {"type": "object", "properties": {"a": {}}, "allOf": [{"maxProperties": 3}]},
        "/allOf/0/maxProperties",
    ),
    "a reference to what it is a part of": (
        {"type": "object", "properties": {"a": {"$ref": "#", "required": ["a"]}}},
        "/properties/a/%24ref",
    ),
}


@pytest.mark.parametrize("kind", CAUTIOUS)
async def test_what_only_the_library_can_tell_is_left_out(calling: Any, kind: str) -> None:
    schema, places = CAUTIOUS[kind]
    asked: dict[str, Any] = {"name": "n", "schema": schema}
    async with calling.http() as http:
        for path, body in (("chat/completions", CHAT), ("completions", ASK)):
            calling.engine.reset()
            loose = {"type": "json_schema", "json_schema": asked | {"strict": False}}
            answer = await http.post(f"/v1/{path}", json=body | {"response_format": loose})
            told = IN_CHAT + places.replace("X", IN_CHAT)
            assert (answer.status_code, answer.headers.get(HEADER)) == (200, told)
            [request] = calling.engine.asked
            assert request.context.params.constraint.strict
            strict = {"type": "json_schema", "json_schema": asked | {"strict": True}}
            refused = (await http.post(f"/v1/{path}", json=body | {"response_format": strict})).json()["error"]
            assert refused["param"] == "response_format"
            assert "json-schema:///" not in refused["message"]


async def test_of_one_that_becomes_too_long_there_is_no_other(calling: Any) -> None:
    """Required names become properties, each with a schema, which can make the schema too long."""
    listed = {"enum": [str(index) for index in range(24_000)]}
    names = {"type": "object", "propertyNames": listed, "additionalProperties": {"minLength": 1}}
    schema = CAUTIOUS["patterns that overlap"][0] | {"properties": {"names": names}}
    kept = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    async with calling.http() as http:
        answer = await http.post("/v1/chat/completions", json=CHAT | {"response_format": kept})
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, "response_format"), error


async def test_nothing_is_named_where_all_is_enforced(calling: Any) -> None:
    fine = {"type": "object", "properties": {"a": {"oneOf": [{"type": "null"}, {"const": "x", "format": "word"}]}}}
    kept: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": fine}}
    async with calling.http() as http:
        for strict in (None, False, True):
            kept["json_schema"]["strict"] = strict
            answer = await http.post("/v1/chat/completions", json=CHAT | {"response_format": kept})
            assert (answer.status_code, HEADER in answer.headers) == (200, False)
