"""Requests follow the document until they are damaged, and the judge finds faults."""

from __future__ import annotations

import json
import random
from itertools import islice
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from fuzz.damage import change, doubled, flipped, nested
from fuzz.judge import Judge
from fuzz.requests import GENERATOR, Fuzzed, Known, Requests, request
from fuzz.run import alike
from fuzz.values import Values
from fuzz.wire import Answer
from plimsoll_runtime.api.openapi.document import document

DOCUMENT = document()
KINDS = 11
ERROR = b'{"error":{"message":"It is not so.","type":"invalid_request_error","param":null,"code":null}}'
MODELS = b'{"object":"list","data":[]}'
ASKED = Fuzzed("t", GENERATOR, request("GET", "/v1/models", b""), ("get", "/v1/models"))
TEXTS = ("post", "/v1/completions")
STREAM = Fuzzed("t", GENERATOR, request("POST", TEXTS[1], b"{}"), TEXTS)
JSON = {"content-type": "application/json"}
EVENTS = {"content-type": "text/event-stream; charset=utf-8"}


@pytest.fixture(scope="module")
def drawn() -> list[Fuzzed]:
    return list(islice(Requests(DOCUMENT, 1, Known()), 500))


def test_the_same_seed_draws_the_same(drawn: list[Fuzzed]) -> None:
    assert list(islice(Requests(DOCUMENT, 1, Known()), 500)) == drawn
    assert list(islice(Requests(DOCUMENT, 2, Known()), 500)) != drawn


def test_every_kind_and_every_operation_is_drawn() -> None:
    drawn = list(islice(Requests(DOCUMENT, 1, Known()), 2000))
    assert len({asked.kind for asked in drawn}) == KINDS
    told = {(m, p) for p, methods in DOCUMENT["paths"].items() for m in methods} - {("get", "/docs")}
    assert {asked.operation for asked in drawn} - {None} == told


def test_valid_bodies_are_as_the_document_says() -> None:
    asked = [one for one in islice(Requests(DOCUMENT, 1, Known()), 1500) if one.valid]
    assert len(asked) > 200
    as_described = 0
    for one in asked:
        assert one.operation is not None
        method, path = one.operation
        schema = DOCUMENT["paths"][path][method]["requestBody"]["content"]["application/json"]["schema"]
        body = json.loads(one.data.partition(b"\r\n\r\n")[2])
        as_described += Draft202012Validator({**schema, "components": DOCUMENT["components"]}).is_valid(body)
    assert as_described > 0.8 * len(asked), "hints name what a server would refuse too, but most is as described"


def test_an_id_that_was_given_is_asked_for() -> None:
    known = Known()
    known.learn("/v1/responses", {"id": "resp_1"})
    known.learn("/v1/models", {"id": "fake"})
    assert known == Known(responses=["resp_1"])
    assert any(b" /v1/responses/resp_1 " in one.data for one in islice(Requests(DOCUMENT, 1, known), 500))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": 3, "maximum": 5},
        {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        {"type": "string", "minLength": 2, "maxLength": 3},
        {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2},
        {"anyOf": [{"const": 1}, {"enum": ["a"]}, {"type": "null"}]},
        {"type": "object", "properties": {"a": {"$ref": "#/components/schemas/TextPart"}}, "required": ["a"]},
    ],
)
def test_values_are_of_their_schema(schema: dict[str, Any]) -> None:
    values = Values(DOCUMENT, random.Random(0), {})
    valid = Draft202012Validator({**schema, "components": DOCUMENT["components"]})
    for _ in range(100):
        valid.validate(values.of(schema))


@pytest.mark.parametrize("seed", range(5))
def test_damage_is_damage(seed: int) -> None:
    rng = random.Random(seed)
    body = {"a": 1, "b": [{"c": "d"}], "e": {"f": None}}
    changed = json.loads(json.dumps(body))
    change(rng, changed, [("g", 1)])
    assert changed != body
    data = json.dumps(body).encode()
    assert flipped(rng, data) != data
    assert len(nested(rng, body)) >= 50
    names = [name for name, _ in json.loads(doubled(rng, body), object_pairs_hook=list)]
    assert len(names) == len(body) + 1


@pytest.mark.parametrize(
    ("asked", "answer", "told"),
    [
        (ASKED, Answer(200, JSON, MODELS), None),
        (ASKED, Answer(200, JSON, b'{"object":"list"}'), "is not as described"),
        (ASKED, Answer(200, {"content-type": "text/plain"}, b"x"), "the document does not have"),
        (ASKED, Answer(200, JSON, MODELS[:9], whole=False), "cut short"),
        (ASKED, Answer(None), "no answer"),
        (ASKED, Answer(500, JSON, ERROR), "500"),
        (ASKED, Answer(503, JSON, ERROR), "503"),
        (ASKED, Answer(504, JSON, ERROR), "504"),
        (ASKED, Answer(400, JSON, ERROR), None),
        (ASKED, Answer(400, JSON, b"{}"), "is not as described"),
        (ASKED, Answer(400, JSON, ERROR.replace(b"It is not so.", b"No.")), "says nothing"),
        (ASKED, Answer(400, {"content-type": "text/plain"}, b"x"), "in 'text/plain'"),
        (STREAM, Answer(200, EVENTS, b"data: [DONE]\n\n"), None),
        (STREAM, Answer(200, EVENTS, b"data: [DONE]"), "ends with"),
        (STREAM, Answer(200, EVENTS, b"data: [DONE]\n\ndata: {}\n\n"), "events after data: [DONE]"),
        (STREAM, Answer(200, EVENTS, b"data: {}\n\ndata: [DONE]\n\n"), "is not as described"),
        (STREAM, Answer(200, EVENTS, b"data: %s\n\n" % ERROR), "in the stream: It is not so."),
    ],
)
def test_the_judge(asked: Fuzzed, answer: Answer, told: str | None) -> None:
    complaint = Judge(DOCUMENT).complaint(asked, answer)
    if told is None:
        assert complaint is None
    else:
        assert told in str(complaint)


def test_who_hangs_up_or_sends_half_a_request_is_owed_nothing_and_a_deadline_may_pass() -> None:
    judge, left = Judge(DOCUMENT), Fuzzed("t", GENERATOR, STREAM.data, TEXTS, hang_up=0)
    assert judge.complaint(left, Answer(200, EVENTS, b"da", whole=False)) is None
    assert judge.complaint(Fuzzed("t", GENERATOR, b"POST", answered=False), Answer(None)) is None
    assert judge.complaint(Fuzzed("t", GENERATOR, STREAM.data, TEXTS, dated=True), Answer(504, JSON, ERROR)) is None
    assert judge.complaint(Fuzzed("t", GENERATOR, STREAM.data, TEXTS, dated=True), Answer(500, JSON, ERROR))


def test_answers_are_alike_but_for_the_last_bits_of_numbers() -> None:
    assert alike([{"a": 0.1234567}, "x", 1], [{"a": 0.1234568}, "x", 1])
    for other in ([{"a": 0.2}, "x", 1], [{"a": 0.1234567}, "y", 1], [{"a": 0.1234567}, "x", 2], [{}, "x", 1], []):
        assert not alike([{"a": 0.1234567}, "x", 1], other)
