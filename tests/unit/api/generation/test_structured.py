"""Output constrained to a schema, a pattern or a grammar, as clients request it."""

from __future__ import annotations

from typing import Any

import pytest

from plimsoll_runtime.engine.protocol.constraint import Constraint

pytestmark = pytest.mark.asyncio(loop_scope="module")

HELLO: list[Any] = [{"role": "user", "content": "Hi"}]
SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}


def as_schema(schema: Any, **more: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **more}}}


def as_outputs(**outputs: Any) -> dict[str, Any]:
    return {"structured_outputs": outputs}


ASKED: list[tuple[dict[str, Any], Constraint | None]] = [
    ({"response_format": {"type": "text"}}, None),
    ({"response_format": None, "structured_outputs": None}, None),
    ({"response_format": {"type": "json_object"}}, Constraint.json({"type": "object"})),
    (as_schema(SCHEMA), Constraint.json(SCHEMA, strict=False)),
    (as_schema(SCHEMA, strict=False), Constraint.json(SCHEMA, strict=False)),
    (as_schema(SCHEMA, strict=True, description="It says so."), Constraint.json(SCHEMA)),
    (as_schema(True), Constraint.json(True, strict=False)),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "any"}}}, Constraint.json(True, strict=False)),
    (as_outputs(json=SCHEMA), Constraint.json(SCHEMA, strict=False)),
    (as_outputs(json='{"type": "null"}'), Constraint("json", '{"type": "null"}', strict=False)),
    (as_outputs(regex="[a-c]+"), Constraint.regex("[a-c]+")),
    (as_outputs(choice=["a", "b"]), Constraint.choice(["a", "b"])),
    (as_outputs(grammar='start: "a"+'), Constraint.grammar('start: "a"+')),
    (as_outputs(), None),
    ({"bad_words": ["no", "never"]}, Constraint.without(["no", "never"])),
    ({"bad_words": []}, None),
    (
        as_outputs(structural_tag={"structures": [{"begin": "<a>", "schema": {}, "end": ""}], "triggers": ["<"]}),
        Constraint.tags({"structures": [{"begin": "<a>", "schema": {}, "end": ""}], "triggers": ["<"]}, strict=False),
    ),
]


async def test_what_the_engine_is_asked(running: Any) -> None:
    async with running.http() as http:
        for fields, expected in ASKED:
            for path, body in (("chat/completions", {"messages": HELLO}), ("completions", {"prompt": "Hi"})):
                running.engine.reset()
                answer = await http.post(f"/v1/{path}", json={"model": "fake", **body, **fields})
                assert answer.status_code == 200, (fields, answer.text)
                [asked] = running.engine.asked
                assert asked.context.params.constraint == expected, fields
    assert running.engine.vocabulary.end_ids == [257]


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    (
        {"response_format": {"type": "yaml"}},
        "response_format",
        "must be an object whose type is 'text', 'json_object' or",
    ),
    ({"response_format": "json"}, "response_format", "must be an object whose type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "issing"),
    (as_schema({"type": "array", "uniqueItems": True}, strict=True), "response_format", "at '/uniqueItems'"),
    (as_schema({"type": "strange"}), "response_format", "strange"),
    (as_schema(False), "response_format", "object or true"),
    (as_schema({"$ref": "#"}), "response_format", "no text satisfies it"),
    (as_outputs(regex="(?=a)"), "structured_outputs", "look-ahead"),
    (as_outputs(regex="a", choice=["b"]), "structured_outputs", "regex and choice"),
    (as_outputs(choice=[]), "structured_outputs", "one or more texts"),
    (as_outputs(grammar="start: ("), "structured_outputs", "."),
    (
        as_outputs(grammar='start: <[1-9]> "a" <[2, 4000]>'),
        "structured_outputs",
        "names the token 4000, but the vocabulary has",
    ),
    (as_outputs(yaml="a"), "structured_outputs.yaml", "Unknown parameter"),
    (as_outputs(regex="a" * 300_000), "structured_outputs", "at most 262144 are allowed"),
    (as_schema({}) | as_outputs(regex="a"), "structured_outputs", "'response_format' also constrains"),
    (as_outputs(regex="a") | {"min_tokens": 2}, "min_tokens", "with a constraint"),
    (as_outputs(regex="a") | {"ignore_eos": True}, "ignore_eos", "with a constraint"),
]


async def test_what_cannot_be_kept_to_is_refused_with_the_field_s_name(running: Any) -> None:
    running.engine.reset()
    async with running.http() as http:
        for fields, param, told in REFUSED:
            for stream in (False, True):
                body = {"model": "fake", "messages": HELLO, "stream": stream, **fields}
                answer = await http.post("/v1/chat/completions", json=body)
                assert answer.status_code == 400, (fields, answer.text)
                error = answer.json()["error"]
                assert (error["type"], error["param"]) == ("invalid_request_error", param), (fields, error)
                assert told in error["message"], (fields, error)
    assert running.engine.asked == []


async def test_a_bomb_leaves_the_server_as_it_was(running: Any) -> None:
    rules = "start: a0\n" + "".join(f"a{i}: a{i + 1} a{i + 1}\n" for i in range(4000)) + 'a4000: "x"'
    async with running.http() as http:
        body = {"model": "fake", "messages": HELLO, **as_outputs(grammar=rules)}
        answer = await http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 400
        assert "too many rules" in answer.json()["error"]["message"]
        body = {"model": "fake", "messages": HELLO, **as_outputs(choice=["fine"])}
        assert (await http.post("/v1/chat/completions", json=body)).status_code == 200
