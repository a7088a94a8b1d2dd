"""The OpenAPI document matches the requests and responses of the server, for every route."""

import copy
import json
from html.parser import HTMLParser
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from plimsoll_runtime.api.endpoints.messages import chat_of as chat_of_messages
from plimsoll_runtime.api.http.body import parse
from plimsoll_runtime.api.http.errors import ApiError
from plimsoll_runtime.api.openapi.document import OPERATIONS, document
from plimsoll_runtime.api.openapi.html import page
from plimsoll_runtime.api.responses.items import taken
from plimsoll_runtime.api.responses.translation import chat_of as chat_of_response
from plimsoll_runtime.api.schemas.chat import ChatRequest
from plimsoll_runtime.api.schemas.messages import Conversation
from plimsoll_runtime.api.schemas.pooling import PoolingFields
from plimsoll_runtime.api.schemas.response_request import ResponseRequest
from plimsoll_runtime.api.server.access import Access
from plimsoll_runtime.api.server.app import build_app
from plimsoll_runtime.api.server.state import ServerState

DOCUMENT = document()
HELLO = {"role": "user", "content": "Hi"}
CHAT = {"model": "fake", "messages": [HELLO]}
TEXT = {"model": "fake", "prompt": "Hi"}
TURNS = CHAT | {"max_tokens": 20}
PARTS = [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]
USAGE = {"include_usage": True}
RESPONSE = {"model": "fake", "input": "Hi"}
ITEMS = [
    {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "5"},
]

ASKED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", CHAT),
    (
        "/v1/chat/completions",
        CHAT | {"messages": [HELLO | {"content": PARTS, "mood": [1]}, HELLO], "n": 2, "stop": "x"},
    ),
    ("/v1/chat/completions", CHAT | {"logprobs": True, "top_logprobs": 2, "prompt_logprobs": 1, "temperature": 0}),
    ("/v1/chat/completions", CHAT | {"stream": True}),
    ("/v1/chat/completions", CHAT | {"stream": True, "stream_options": USAGE, "n": 2, "stop": ["x", "y"]}),
    ("/v1/chat/completions", CHAT | {"stream": True, "logprobs": True, "top_logprobs": 1, "prompt_logprobs": 0}),
    ("/v1/chat/completions", CHAT | {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}}),
    ("/v1/chat/completions", CHAT | {"logit_bias": {"5": -1.5}, "stop_token_ids": [72], "seed": -1, "metadata": {}}),
    ("/v1/completions", TEXT),
    ("/v1/completions", TEXT | {"prompt": ["a", [1, 2]], "echo": True, "logprobs": 1, "prompt_logprobs": 1}),
    ("/v1/completions", TEXT | {"prompt": [1, 2], "max_tokens": 0, "echo": True, "logprobs": 0}),
    (
        "/v1/completions",
        TEXT | {"prompt": [[1], [2]], "stream": True, "stream_options": USAGE, "stop_token_ids": [101]},
    ),
    ("/v1/completions", TEXT | {"stream": True, "echo": True, "logprobs": 2}),
    ("/v1/responses", RESPONSE),
    ("/v1/responses", RESPONSE | {"input": ITEMS, "store": False, "text": {"format": {"type": "text"}}}),
    ("/v1/responses", RESPONSE | {"stream": True, "include": ["message.output_text.logprobs"], "top_logprobs": 1}),
    ("/v1/responses", RESPONSE | {"stream": True, "background": True, "metadata": {"a": "b"}}),
    ("/v1/messages", TURNS),
    ("/v1/messages", TURNS | {"stream": True, "stop_sequences": ["l"], "thinking": {"type": "disabled"}}),
    (
        "/v1/messages",
        TURNS
        | {
            "system": PARTS,
            "messages": [HELLO | {"content": PARTS, "mood": 1}, {"role": "assistant", "content": "Hi"}],
            "top_k": 3,
            "metadata": {"user_id": "u"},
            "tool_choice": {"type": "none"},
            "output_config": {"format": {"type": "json_schema", "schema": True}},
        },
    ),
    ("/v1/messages/count_tokens", {"model": "fake", "messages": [HELLO]}),
    ("/v1/responses/input_tokens", RESPONSE),
    ("/tokenize", {"prompt": "Hi"}),
    ("/tokenize", {"messages": [HELLO], "return_token_strs": True}),
    ("/detokenize", {"tokens": [72, 105]}),
]


def closed(schema: Any) -> Any:
    """Return the schema with additional fields forbidden, so that it must name all fields of a response."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: closed(value) for key, value in schema.items()}
    return {"additionalProperties": False} | found if "properties" in found else found


def check(schema: dict[str, Any], value: Any, components: Any = DOCUMENT["components"]) -> None:
    Draft202012Validator({**schema, "components": components}).validate(value)


def operation_of(path: str) -> dict[str, Any]:
    found: dict[str, Any] = DOCUMENT["paths"][path]["post"]
    return found


def is_valid(path: str, body: Any) -> bool:
    schema = operation_of(path)["requestBody"]["content"]["application/json"]["schema"]
    return bool(Draft202012Validator({**schema, "components": DOCUMENT["components"]}).is_valid(body))


def test_schemas_are_schemas() -> None:
    for schema in DOCUMENT["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


def test_every_route_is_described_and_nothing_else() -> None:
    access = build_app(ServerState(("fake",)))
    assert isinstance(access, Access)
    app = access._app
    assert isinstance(app, FastAPI)
    routes = [route for route in app.routes if isinstance(route, APIRoute)]
    assert len(routes) == len(app.routes)
    routed = {(m.lower(), r.path.replace(":path", "")) for r in routes for m in (r.methods or set()) - {"HEAD"}}
    described = {(method, path) for path, methods in DOCUMENT["paths"].items() for method in methods}
    assert described == routed == {(operation.method, operation.path) for operation in OPERATIONS}


@pytest.mark.matrix(2)
@pytest.mark.parametrize(("path", "body"), ASKED)
async def test_requests_and_answers_are_as_described(fresh: Any, path: str, body: dict[str, Any]) -> None:
    async with fresh.http() as http:
        answer = await http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert is_valid(path, body)
    media = answer.headers["content-type"].partition(";")[0]
    contents = operation_of(path)["responses"]["200"]["content"]
    components = closed(DOCUMENT["components"])
    if media == "application/json":
        check(contents[media]["schema"], answer.json(), components)
        return
    *events, rest = answer.text.split("\n\n")
    assert rest == ""
    if path in ("/v1/chat/completions", "/v1/completions"):
        assert events.pop() == "data: [DONE]"
    assert events
    for event in events:
        named, _, data = event.rpartition("data: ")
        check(contents[media]["schema"]["x-event"], json.loads(data), components)
        assert named in ("", f"event: {json.loads(data).get('type')}\n")


@pytest.mark.parametrize("stream", [False, True])
async def test_errors_are_as_described(fresh: Any, stream: bool) -> None:
    schema = operation_of("/v1/completions")["responses"]["default"]["content"]["application/json"]["schema"]
    fresh.engine.error, fresh.engine.error_after = "broken", 1
    async with fresh.http() as http:
        failed = await http.post("/v1/completions", json=TEXT | {"stream": stream})
        for answer in [
            await http.post("/v1/completions", json={}),
            await http.post("/v1/completions", json=TEXT | {"model": "other"}),
            await http.get("/nowhere"),
        ]:
            assert answer.status_code >= 400
            check(schema, answer.json(), closed(DOCUMENT["components"]))
    text = failed.text.split("\n\n")[-2].removeprefix("data: ") if stream else failed.text
    check(schema, json.loads(text), closed(DOCUMENT["components"]))


async def test_what_is_got_is_as_described(fresh: Any) -> None:
    async with fresh.http() as http:
        for path, filled in (("/v1/models", "/v1/models"), ("/v1/models/{name}", "/v1/models/fake")):
            contents = DOCUMENT["paths"][path]["get"]["responses"]["200"]["content"]
            check(contents["application/json"]["schema"], (await http.get(filled)).json())
        assert (await http.get("/openapi.json")).json() == json.loads(json.dumps(DOCUMENT))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = [
    (operation.path, operation.request, field)
    for operation in OPERATIONS
    if operation.request is not None
    for field in [*operation.request.model_fields, "unknown"]
]
POOLED: dict[str, dict[str, Any]] = {
    "/v1/embeddings": {"model": "fake", "input": ["a", [1, 2]]},
    "/v1/score": {"model": "fake", "text_1": "a", "text_2": ["b", "c"]},
    "/v1/rerank": {"model": "fake", "query": "a", "documents": ["b", {"text": "c"}]},
    "/v2/rerank": {"model": "fake", "query": "a", "documents": ["b"]},
    "/v1/classify": {"model": "fake", "input": ["a", ["b", "c"]]},
}
"""Requests for models of other tasks; `test_pooling` has their responses."""
BODIES: dict[str, dict[str, Any]] = (dict(reversed(ASKED)) | POOLED) | {
    "/v1/batches": {"input_file_id": "file-1", "endpoint": "/v1/completions", "completion_window": "24h"}
}


@pytest.mark.parametrize("path", POOLED)
def test_what_generates_nothing_is_asked_as_described(path: str) -> None:
    assert is_valid(path, POOLED[path])
    accept(next(o.request for o in OPERATIONS if o.path == path), POOLED[path])


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(FIELDS), VALUES | st.integers(-3, 3) | st.sampled_from(["none", "text", "auto", {"5": 1}, [1]]))
@example(("/v1/chat/completions", ChatRequest, "messages"), [HELLO | {"content": PARTS}])
@example(("/v1/chat/completions", ChatRequest, "messages"), [HELLO | {"name": "n" * 257}])
def test_what_the_document_forbids_is_refused(place: tuple[str, Any, str], value: Any) -> None:
    path, schema, field = place
    body = copy.deepcopy(BODIES[path]) | {field: value}
    if not is_valid(path, body):
        with pytest.raises(ApiError):
            accept(schema, body)


def accept(schema: Any, body: dict[str, Any]) -> None:
    """Run all checks that need no model."""
    request = parse(json.dumps(body).encode(), schema)
    if isinstance(request, ResponseRequest):
        request.check()
        request = chat_of_response(request, taken(request.input, "resp_0", {}))
    if isinstance(request, Conversation):
        request = chat_of_messages(request)
    if hasattr(request, "sampling_params"):
        request.check()
        request.sampling_params(max_tokens=request.token_limit or 1, logprobs=None, prompt_logprobs=None)
    if isinstance(request, PoolingFields):
        request.params()
    for index, message in enumerate(getattr(request, "messages", None) or ()):
        message.rendered(f"messages[{index}]")


class Links(HTMLParser):
    """The anchors of a page, the targets of its links, and what it would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.fetched: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.anchors.add(value or "")
            elif tag == "a" and name == "href":
                self.links.add(value or "")
            elif name in ("src", "href"):
                self.fetched.append(value or "")
        assert tag not in ("script", "link", "img", "iframe")

    def handle_data(self, data: str) -> None:
        self.text += data


async def test_the_page_needs_no_network_and_leaves_nothing_out(fresh: Any) -> None:
    async with fresh.http() as http:
        answer = await http.get("/docs")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    found = Links()
    found.feed(answer.text)
    assert found.fetched == []
    assert "url(" not in answer.text
    assert found.links <= {f"#{anchor}" for anchor in found.anchors} | {"openapi.json"}
    for operation in OPERATIONS:
        assert f"{operation.method.upper()} {operation.path}" in found.text
    for name, schema in DOCUMENT["components"]["schemas"].items():
        assert name in found.anchors
        assert all(field in found.text for field in schema.get("properties", {}))


def test_markup_in_a_document_is_text() -> None:
    hurt = json.loads(json.dumps(DOCUMENT).replace("Generate the next message of a chat.", "<script>alert(1)</script>"))
    assert "<script>" not in page(hurt)
    assert "&lt;script&gt;" in page(hurt)


async def test_the_document_needs_no_key_and_no_model(run_server: Any) -> None:
    async with run_server(api_keys=("k",)) as server, server.http() as http:
        for path in ("/openapi.json", "/docs"):
            assert (await http.get(path)).status_code == 200
            assert (await http.head(path)).status_code == 200
