"""A minimal endpoint that generates: a body, its engine requests, and the format of its output."""

import json
from functools import partial
from typing import Any

import msgspec
import pytest
from starlette.requests import Request

from plimsoll_runtime.api.endpoint import Endpoint
from plimsoll_runtime.api.generation.choices import GenerationRequest, Piece, UsageMeter, all_pieces, plan_choices
from plimsoll_runtime.api.generation.generation import Generation
from plimsoll_runtime.api.http.errors import ApiError
from plimsoll_runtime.api.model_directory import OneModel
from plimsoll_runtime.api.schemas.sampling import ModelFields
from plimsoll_runtime.api.served_model import ServedModel
from plimsoll_runtime.api.server.limits import BodyLimits
from plimsoll_runtime.api.telemetry.request_record import RequestRecord
from plimsoll_runtime.engine.protocol.messages import MarkKind
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams


class Shout(ModelFields):
    """A request body."""

    words: list[str]


class Loud(msgspec.Struct):
    """The response, and each event."""

    texts: list[str]
    tokens: int


class LoudAnswers:
    def __init__(self, body: Shout, job: Generation, meter: UsageMeter) -> None:
        self._texts = ["" for _ in body.words]
        self._meter = meter

    def add(self, piece: Piece) -> None:
        self._texts[piece.choice.index] += piece.delta.text.upper()

    def whole(self) -> Loud:
        return Loud(self._texts, self._meter.completion_tokens)

    def events(self, piece: Piece) -> list[Loud]:
        return [Loud([piece.delta.text.upper()], self._meter.completion_tokens)] if piece.delta.text else []

    def last(self) -> list[Loud]:
        return [Loud([], self._meter.completion_tokens)]


def prepare(body: Shout, model: ServedModel, record: RequestRecord) -> Generation:
    wanted = GenerationRequest(
        [list(word.encode()) for word in body.words], SamplingParams(max_tokens=3), "words", max_tokens=3
    )
    return Generation(model, plan_choices(model, wanted, record), record, partial(LoudAnswers, body))


async def ask(tokenizer: Any, engine: Any, **body: Any) -> tuple[list[bytes], RequestRecord]:
    """Return the response to a body, as sent."""
    received = [{"type": "http.request", "body": json.dumps({"model": "fake", **body}).encode()}]

    async def receive() -> Any:
        return received.pop() if received else await engine.wait_dead()

    scope: dict[str, Any] = {
        "type": "http",
        "method": "POST",
        "path": "/",
        "headers": [(b"content-type", b"application/json")],
    }
    BodyLimits().lay(scope)
    record, sent = RequestRecord("r"), list[bytes]()
    response = await Endpoint(Shout, prepare)(
        Request(scope, receive), OneModel(ServedModel(("fake",), engine, tokenizer, 0)), record
    )

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    await response(scope, receive, send)
    return [part for part in sent if part], record


async def test_the_answer_is_what_the_form_made_of_all_pieces(tokenizer: Any, make_engine: Any) -> None:
    sent, record = await ask(tokenizer, make_engine(), words=["a", "bc"])
    assert json.loads(b"".join(sent)) == {"texts": ["HEL", "HEL"], "tokens": 6}
    assert (record.model, record.prompt_tokens, record.completion_tokens) == ("fake", 3, 6)
    assert record.finish_reasons == ["length", "length"]


async def test_a_stream_has_each_piece_and_then_the_last(tokenizer: Any, make_engine: Any) -> None:
    sent, _ = await ask(tokenizer, make_engine(), words=["a"], stream=True)
    *events, done = [part.removeprefix(b"data: ").strip() for part in sent]
    assert done == b"[DONE]"
    told = [(event["texts"], event["tokens"]) for event in map(json.loads, events)]
    assert told == [(["H"], 1), (["E"], 2), (["L"], 3), ([], 3)]


async def test_a_prompt_is_refused_by_the_name_of_its_field(tokenizer: Any, make_engine: Any) -> None:
    with pytest.raises(ApiError, match="'words': it is empty") as refused:
        await ask(tokenizer, make_engine(), words=[""])
    assert refused.value.param == "words"


async def test_a_choice_that_ends_at_a_stop_text_has_ended_in_the_engine_too(tokenizer: Any, make_engine: Any) -> None:
    """The server tells the engine to end it, so the engine sends no mark of its end."""
    model, record = ServedModel(("fake",), make_engine(), tokenizer, 0), RequestRecord("r")
    wanted = GenerationRequest([[97]], SamplingParams(max_tokens=3, stop=("e",)), "words", max_tokens=3)
    pieces = [piece async for piece in all_pieces(model, plan_choices(model, wanted, record), record)]
    assert pieces[-1].delta.finish_reason == "stop"
    assert [mark.kind for mark in record.marks[0]][-1:] == [MarkKind.FINISHED]
