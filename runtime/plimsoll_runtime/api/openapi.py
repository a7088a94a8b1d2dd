"""The OpenAPI document of the server, made of the types that read its requests and write its answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from plimsoll_runtime import __version__
from plimsoll_runtime.api.ignored import HEADER, LIMIT
from plimsoll_runtime.api.schemas.answers import (
    ChatAnswer,
    ChatChunk,
    CompletionAnswer,
    ErrorAnswer,
    ModelCard,
    ModelList,
)
from plimsoll_runtime.api.schemas.chat import ChatRequest
from plimsoll_runtime.api.schemas.completions import CompletionRequest
from plimsoll_runtime.api.schemas.tokens import DetokenizeAnswer, DetokenizeRequest, TokenizeAnswer, TokenizeRequest
from plimsoll_runtime.engine.params import RANGES

SCHEMAS = "#/components/schemas/"
_STREAM = (
    "With `stream: true`: server-sent events. The data of each is JSON as `x-event` says, that of the last one is "
    "`[DONE]`, or an ErrorAnswer where the request fails after its stream has begun."
)


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path. `answer` is a type, or the media type of what is no JSON of a type."""

    method: str
    path: str
    summary: str
    answer: type[msgspec.Struct] | str
    request: type[BaseModel] | None = None
    event: type[msgspec.Struct] | None = None


OPERATIONS = (
    Operation("post", "/v1/chat/completions", "Answer a chat.", ChatAnswer, ChatRequest, event=ChatChunk),
    Operation(
        "post", "/v1/completions", "Go on with a text.", CompletionAnswer, CompletionRequest, event=CompletionAnswer
    ),
    Operation("get", "/v1/models", "The names that requests may use.", ModelList),
    Operation("get", "/v1/models/{name}", "One of these names.", ModelCard),
    Operation("post", "/tokenize", "Token ids of a text or a chat.", TokenizeAnswer, TokenizeRequest),
    Operation("post", "/detokenize", "The text of token ids.", DetokenizeAnswer, DetokenizeRequest),
    Operation("get", "/health", "Whether requests are taken: 200, else 503.", "application/json"),
    Operation("get", "/live", "That the process answers.", "application/json"),
    Operation("get", "/version", "The version of the software.", "application/json"),
    Operation("get", "/metrics", "Metrics in Prometheus' format.", "text/plain"),
    Operation("get", "/openapi.json", "This document.", "application/json"),
    Operation("get", "/docs", "This document, to be read.", "text/html"),
)


def document() -> dict[str, Any]:
    """The document (OpenAPI 3.1)."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Plimsoll runtime",
            "version": __version__,
            "description": "Models behind an API in OpenAI's shape. Fields of a request that are not known are left "
            f"aside and named in the header {HEADER}, or refused (400) with --strict-parameters.",
        },
        "paths": paths,
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _described(operation: Operation) -> dict[str, Any]:
    content = (
        {operation.answer: {}} if isinstance(operation.answer, str) else {"application/json": _of(operation.answer)}
    )
    if operation.event is not None:
        stream = {"type": "string", "description": _STREAM, "x-event": {"$ref": SCHEMAS + operation.event.__name__}}
        content["text/event-stream"] = {"schema": stream}
    answer: dict[str, Any] = {"description": "The answer.", "content": content}
    if operation.request is not None:
        told = f"Paths of the fields that were left aside, at most {LIMIT} bytes; escaped as in a URL."
        answer["headers"] = {HEADER: {"description": told, "schema": {"type": "string", "maxLength": LIMIT}}}
    described: dict[str, Any] = {"summary": operation.summary, "responses": {"200": answer}}
    if "{name}" in operation.path:
        described["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}]
    if operation.path.startswith("/v1/") or operation.request is not None:
        described["responses"]["default"] = {
            "description": "Why there is none.",
            "content": {"application/json": _of(ErrorAnswer)},
        }
    if operation.request is not None:
        body = {"required": True, "content": {"application/json": _of(operation.request)}}
        described["requestBody"] = body
    return described


def _of(kind: type[msgspec.Struct] | type[BaseModel]) -> dict[str, Any]:
    return {"schema": {"$ref": SCHEMAS + kind.__name__}}


def _schemas() -> dict[str, Any]:
    requests = [operation.request for operation in OPERATIONS if operation.request is not None]
    _, generated = models_json_schema([(kind, "validation") for kind in requests], ref_template=SCHEMAS + "{model}")
    known: dict[str, Any] = generated["$defs"]
    for schema in known.values():
        _add_ranges(schema)
    answers: Sequence[Any] = [o.answer for o in OPERATIONS if not isinstance(o.answer, str)]
    events = [operation.event for operation in OPERATIONS if operation.event is not None]
    _, structs = msgspec.json.schema_components([*answers, *events, ErrorAnswer], ref_template=SCHEMAS + "{name}")
    return known | structs


def _add_ranges(schema: dict[str, Any]) -> None:
    """What the engine says of numbers, of which the requests' own types know nothing."""
    for field, (low, high, above) in RANGES.items():
        for kind in schema["properties"].get(field, {}).get("anyOf", ()):
            if kind.get("type") == "number":
                kind |= {"exclusiveMinimum" if above else "minimum": low, "maximum": high}
