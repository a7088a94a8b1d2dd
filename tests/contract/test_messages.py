"""Gateway and runtime send Anthropic's clients the same, although they share no module."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers, QueryParams

from plimsoll_gateway.admission.quota.token_meter import Meter
from plimsoll_gateway.demand.revision_totals import PING
from plimsoll_gateway.errors import dialects, refusals, unsupported_paths
from plimsoll_gateway.errors.refusals import Refusal, code_of, told_by_replica
from plimsoll_gateway.keys.keyring import given_key
from plimsoll_gateway.pages import model_list
from plimsoll_gateway.proxy.replica_proxy import NO_SUCH_MODEL
from plimsoll_runtime.api.endpoints import models
from plimsoll_runtime.api.http import errors as of_runtime
from plimsoll_runtime.api.http.errors import ApiError, json_response, unavailable
from plimsoll_runtime.api.http.sse import END
from plimsoll_runtime.api.model_directory import unknown_model
from plimsoll_runtime.api.openapi import document as offers_of_runtime
from plimsoll_runtime.api.schemas.message_events import (
    BlockToolUse,
    MessageAnswer,
    MessageDelta,
    MessageStop,
    MessageUsage,
    Ping,
    Stopped,
)
from plimsoll_runtime.api.server.credentials import ApiKeys
from plimsoll_runtime.api.telemetry.request_record import RequestRecord

PATHS = ["/", "/v1", "/v1/messages", "/v1/messages/", "/v1/messages/x", "/v1/messagesx", "/v1/models", "/v1/models/m"]
PATHS += ["/v1/modelsx", "/v1/chat/completions", "/v1/audio/speech", "/v1/moderations", "/v2/audio", "/audio/v1/x"]
STATUSES = [400, 401, 403, 404, 405, 408, 409, 413, 429, 500, 502, 503, 504]


@pytest.mark.parametrize("version", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_both_know_the_same_paths(path: str, version: bool) -> None:
    headers = [(b"anthropic-version", b"2023-06-01")] if version else []
    scope = {"type": "http", "path": path, "headers": headers}
    spoken = dialects.dialect_of(path, dict(headers)) is dialects.ANTHROPIC
    assert spoken == of_runtime.speaks_anthropic(scope)
    assert unsupported_paths.not_offered(path) == offers_of_runtime.not_offered(path)


def test_both_offer_the_same() -> None:
    assert unsupported_paths.NOT_OFFERED == offers_of_runtime.NOT_OFFERED


@pytest.mark.parametrize("status", STATUSES)
def test_errors_are_alike(status: int) -> None:
    ours = dialects.ANTHROPIC
    refusal = Refusal(status, "why", code="c")
    scope = {"type": "http", "path": "/v1/messages", "headers": [], "plimsoll.record": RequestRecord("id")}
    theirs = of_runtime.dialect_of(scope)
    answer = theirs.response(ApiError("why", status=status, code="c"))
    assert answer.status_code == ours.status(refusal)
    assert json.loads(bytes(answer.body)) == json.loads(ours.body(refusal, "id"))
    event = theirs.event(theirs.error(ApiError("why", status=status, code="c"))) + END
    named, data = event.split(b"\n", 1)
    assert named + b"\n" == ours.event(refusal, "id")[: len(named) + 1]
    assert json.loads(data.removeprefix(b"data: ")) == json.loads(ours.body(refusal, "id"))
    assert theirs.id_header is not None
    assert theirs.id_header.encode() in ours.id_names


def test_the_gateway_knows_the_end_of_a_stream_and_a_ping() -> None:
    assert dialects.ANTHROPIC.ends(of_runtime.ANTHROPIC.event(MessageStop()) + END)
    assert not dialects.ANTHROPIC.ends(PING)
    assert of_runtime.ANTHROPIC.event(Ping()) + END == PING


def test_the_gateway_reads_the_runtimes_errors() -> None:
    gone = bytes(of_runtime.ANTHROPIC.response(unknown_model("m", ())).body)
    assert code_of(gone) == NO_SUCH_MODEL
    full = of_runtime.ANTHROPIC.response(unavailable("full"))
    told = told_by_replica("m", full.status_code, bytes(full.body))
    assert (told.status, told.message, told.code) == (refusals.UNAVAILABLE, "full", "unavailable")


def test_the_gateway_counts_what_the_runtime_tells() -> None:
    usage = MessageUsage(10, 0, 16, 5)
    call = BlockToolUse("t", "f", {"usage": {"total_tokens": 0, "output_tokens": 0}, "total_tokens": 1})
    answer = MessageAnswer("m", "assistant", "m", [call], "tool_use", None, usage)
    whole = Meter(3)
    whole.begin(200)
    whole.read(bytes(json_response(answer).body), events=False)
    assert whole.tokens() == 31
    stream = Meter(3)
    stream.begin(200)
    for event in (MessageDelta(Stopped("end_turn", None), usage), MessageStop()):
        stream.read(of_runtime.ANTHROPIC.event(event) + END, events=True)
    assert stream.tokens() == 31


KEYS = st.sampled_from([None, "", "Bearer", "Bearer k", "bearer  k ", "Basic k", "Bearer other", "k"])


@given(authorization=KEYS, api_key=st.sampled_from([None, "", "k", " k ", "other"]))
def test_both_find_the_same_key(authorization: str | None, api_key: str | None) -> None:
    given = {"authorization": authorization, "x-api-key": api_key}
    headers = {name: value for name, value in given.items() if value is not None}
    found = given_key({name.encode(): value.encode() for name, value in headers.items()})
    try:
        taken = ApiKeys(["k", "other"]).check(Headers(headers))
    except ApiError:
        taken = None
    assert taken == (found.decode() if found in (b"k", b"other") else None)


NAMES = ["a", "b", "c", "d", "e"]
QUERY = st.fixed_dictionaries(
    {},
    optional={
        "limit": st.sampled_from(["", "0", "1", "2", "5", "1000", "1001", "x", "-1"]),
        "after_id": st.sampled_from([*NAMES, "", "z"]),
        "before_id": st.sampled_from([*NAMES, "z"]),
    },
)


@given(query=QUERY)
def test_both_page_alike(query: dict[str, str]) -> None:
    params = QueryParams(query)
    assert told(lambda: model_list.page_of(NAMES, str(params).encode())) == told(lambda: models.page_of(NAMES, params))


def told(page: Callable[[], object]) -> object:
    """Return the page, or the error of the query."""
    try:
        return page()
    except (Refusal, ApiError) as error:
        return error.status, error.param
