"""The OpenAPI document, generated from the types of requests and responses, and known paths of other servers that
this one does not have."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import msgspec
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from plimsoll_runtime.api.batches.endpoint import MOST_BATCHES, MOST_FILES
from plimsoll_runtime.api.batches.records import (
    BatchAnswer,
    BatchList,
    BatchRequest,
    FileAnswer,
    FileDeleted,
    FileList,
)
from plimsoll_runtime.api.batches.upload import UPLOAD
from plimsoll_runtime.api.endpoints.tokenize import DetokenizeAnswer, DetokenizeRequest, TokenizeAnswer, TokenizeRequest
from plimsoll_runtime.api.http.unknown_fields import HEADER, LIMIT
from plimsoll_runtime.api.responses.endpoint import MOST_ITEMS
from plimsoll_runtime.api.schemas.chat import ChatRequest
from plimsoll_runtime.api.schemas.completions import CompletionRequest
from plimsoll_runtime.api.schemas.message_events import (
    AnthropicError,
    AnthropicModel,
    AnthropicModels,
    Event,
    MessageAnswer,
    TokenCount,
)
from plimsoll_runtime.api.schemas.messages import CountRequest, MessagesRequest
from plimsoll_runtime.api.schemas.outputs import (
    ChatAnswer,
    ChatChunk,
    CompletionAnswer,
    ErrorAnswer,
    ModelCard,
    ModelList,
    Welcome,
)
from plimsoll_runtime.api.schemas.pooling import (
    ClassifyAnswer,
    ClassifyRequest,
    EmbeddingAnswer,
    EmbeddingRequest,
    RerankAnswer,
    RerankRequest,
    ScoreAnswer,
    ScoreRequest,
)
from plimsoll_runtime.api.schemas.response import DeletedResponse, InputTokens, ItemList, Response
from plimsoll_runtime.api.schemas.response_events import ResponseEvent
from plimsoll_runtime.api.schemas.response_request import ResponseRequest
from plimsoll_runtime.api.schemas.sampling import COUNT_LIMIT
from plimsoll_runtime.engine.protocol.sampling_params import RANGES
from plimsoll_runtime.version import VERSION

SCHEMAS = "#/components/schemas/"
_NAMED = (
    "With `stream: true`: server-sent events, each named by the `type` of its data, which is JSON of the type in "
    "`x-event`. The last one is `message_stop`, or an AnthropicError if the request fails after its stream has started."
)
_STREAM = (
    "With `stream: true`: server-sent events. The data of each is JSON of the type in `x-event`; that of the last one "
    "is `[DONE]`, or an ErrorAnswer if the request fails after its stream has started. Streams of responses have the "
    "type of each event in a separate line and no `[DONE]`: they end with `response.completed`, "
    "`response.incomplete`, `response.failed` or `error`."
)


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path. `answer` is the type of the response, or a media type if it is not JSON of one type;
    `others` are further types that it may have. `event` is the type of a stream's events, or a union of types.
    `form` is the schema of a multipart request."""

    method: str
    path: str
    summary: str
    answer: type[msgspec.Struct] | str
    request: type[BaseModel] | None = None
    event: Any = None
    error: type[msgspec.Struct] = ErrorAnswer
    others: Sequence[type[msgspec.Struct]] = ()
    form: Mapping[str, Any] | None = None


OPERATIONS = (
    Operation(
        "post", "/v1/chat/completions", "Generate the next message of a chat.", ChatAnswer, ChatRequest, event=ChatChunk
    ),
    Operation(
        "post", "/v1/completions", "Continue a text.", CompletionAnswer, CompletionRequest, event=CompletionAnswer
    ),
    Operation(
        "post",
        "/v1/responses",
        "Generate a response to a turn of a conversation.",
        Response,
        ResponseRequest,
        event=ResponseEvent,
    ),
    Operation(
        "post", "/v1/responses/input_tokens", "Count the input tokens of a response.", InputTokens, ResponseRequest
    ),
    Operation("get", "/v1/responses/{response_id}", "Get a stored response.", Response, event=ResponseEvent),
    Operation("delete", "/v1/responses/{response_id}", "Delete a stored response.", DeletedResponse),
    Operation("post", "/v1/responses/{response_id}/cancel", "Cancel a background response.", Response),
    Operation("get", "/v1/responses/{response_id}/input_items", "List the input items of a response.", ItemList),
    Operation(
        "post",
        "/v1/messages",
        "Generate the next message of a chat, in Anthropic's format.",
        MessageAnswer,
        MessagesRequest,
        event=Event,
        error=AnthropicError,
    ),
    Operation(
        "post",
        "/v1/messages/count_tokens",
        "Count the tokens of a chat in Anthropic's format.",
        TokenCount,
        CountRequest,
        error=AnthropicError,
    ),
    Operation("post", "/v1/embeddings", "Compute vectors of texts.", EmbeddingAnswer, EmbeddingRequest),
    Operation("post", "/v1/score", "Score how well pairs of texts match.", ScoreAnswer, ScoreRequest),
    Operation("post", "/v1/rerank", "Rank documents by how well they match a query.", RerankAnswer, RerankRequest),
    Operation("post", "/v2/rerank", "Same as /v1/rerank, for Cohere's clients.", RerankAnswer, RerankRequest),
    Operation("post", "/v1/classify", "Classify texts.", ClassifyAnswer, ClassifyRequest),
    Operation("post", "/v1/files", "Upload a file.", FileAnswer, form=UPLOAD),
    Operation("get", "/v1/files", "List stored files.", FileList),
    Operation("get", "/v1/files/{file_id}", "Get a file's record.", FileAnswer),
    Operation("delete", "/v1/files/{file_id}", "Delete a file.", FileDeleted),
    Operation("get", "/v1/files/{file_id}/content", "Download a file's content.", "application/octet-stream"),
    Operation("post", "/v1/batches", "Run the requests in a file, next to live requests.", BatchAnswer, BatchRequest),
    Operation("get", "/v1/batches", "List batches.", BatchList),
    Operation("get", "/v1/batches/{batch_id}", "Get a batch.", BatchAnswer),
    Operation("post", "/v1/batches/{batch_id}/cancel", "Cancel a batch.", BatchAnswer),
    Operation(
        "get",
        "/v1/models",
        "List models by served name; in Anthropic's format if the request has the header anthropic-version.",
        ModelList,
        others=(AnthropicModels,),
    ),
    Operation("get", "/v1/models/{name}", "Get one model.", ModelCard, others=(AnthropicModel,)),
    Operation("post", "/tokenize", "Convert a text or a chat to token ids.", TokenizeAnswer, TokenizeRequest),
    Operation("post", "/detokenize", "Convert token ids to text.", DetokenizeAnswer, DetokenizeRequest),
    Operation(
        "get",
        "/",
        "Describe this server and its models: an HTML page for browsers, otherwise JSON.",
        "text/html",
        others=(Welcome,),
    ),
    Operation("get", "/health", "Readiness: 200 if the server accepts requests, otherwise 503.", "application/json"),
    Operation("get", "/live", "Liveness: 200 while the process answers.", "application/json"),
    Operation("get", "/version", "Get the software's version.", "application/json"),
    Operation(
        "get",
        "/metrics",
        "Get metrics in Prometheus' format, or as OpenMetrics if accepted; with --metrics-port on that port only.",
        "text/plain",
    ),
    Operation("get", "/openapi.json", "Get this document.", "application/json"),
    Operation("get", "/docs", "Get this document as an HTML page.", "text/html"),
)


PROBES = ("/health", "/live")
"""Paths of probes, which return 503 if they fail."""


def _page(most: int) -> dict[str, Any]:
    return {
        "limit": {"type": "integer", "minimum": 1, "maximum": most},
        "order": {"enum": ["asc", "desc"]},
        "after": {"type": "string"},
    }


QUERIES: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("get", "/v1/responses/{response_id}"): {
        "stream": {"type": "boolean"},
        "starting_after": {"type": "integer", "minimum": 0, "maximum": COUNT_LIMIT},
    },
    ("get", "/v1/responses/{response_id}/input_items"): _page(MOST_ITEMS),
    ("get", "/v1/files"): _page(MOST_FILES) | {"purpose": {"type": "string"}},
    ("get", "/v1/batches"): _page(MOST_BATCHES),
}
"""Query parameters of paths."""


def document() -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of the server's API."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Plimsoll runtime",
            "version": VERSION,
            "description": "Models behind an API in OpenAI's format. Unknown fields of a request are ignored "
            f"and named in the header {HEADER}, or refused (400) with --strict-parameters.",
        },
        "paths": paths,
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "anthropic": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{}, {"key": []}, {"anthropic": []}],
    }


def _described(operation: Operation) -> dict[str, Any]:
    content = (
        {operation.answer: {}, **(_json(*operation.others) if operation.others else {})}
        if isinstance(operation.answer, str)
        else _json(operation.answer, *operation.others)
    )
    if operation.event is not None:
        told = _STREAM if operation.error is ErrorAnswer else _NAMED
        events = _any_of(*(get_args(operation.event) or (operation.event,)))
        stream = {"type": "string", "description": told, "x-event": events}
        content["text/event-stream"] = {"schema": stream}
    answer: dict[str, Any] = {"description": "Success.", "content": content}
    if operation.request is not None:
        told = f"Paths of the ignored fields, at most {LIMIT} bytes; escaped as in a URL."
        answer["headers"] = {HEADER: {"description": told, "schema": {"type": "string", "maxLength": LIMIT}}}
    described: dict[str, Any] = {"summary": operation.summary, "responses": {"200": answer}}
    if parameters := _parameters(operation):
        described["parameters"] = parameters
    if operation.path.startswith("/v1/") or operation.request is not None:
        described["responses"]["default"] = {"description": "Error.", "content": _json(operation.error)}
    if operation.path in PROBES:
        described["responses"]["503"] = {"description": "Not ready.", "content": content}
    if operation.request is not None:
        described["requestBody"] = {"required": True, "content": _json(operation.request)}
    if operation.form is not None:
        described["requestBody"] = {"required": True, "content": {"multipart/form-data": {"schema": operation.form}}}
    return described


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    """Return OpenAPI's descriptions of the operation's parameters in the path and the query."""
    names = re.findall(r"{(\w+)}", operation.path)
    within = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    query = QUERIES.get((operation.method, operation.path), {})
    return [*within, *({"name": name, "in": "query", "schema": schema} for name, schema in query.items())]


def _any_of(*kinds: type) -> dict[str, Any]:
    """Return the schema of a value with one of these types."""
    schemas = [{"$ref": SCHEMAS + kind.__name__} for kind in kinds]
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _json(*kinds: type) -> dict[str, Any]:
    """Return the content of a body with one of these types."""
    return {"application/json": {"schema": _any_of(*kinds)}}


def _schemas() -> dict[str, Any]:
    requests = [operation.request for operation in OPERATIONS if operation.request is not None]
    _, generated = models_json_schema([(kind, "validation") for kind in requests], ref_template=SCHEMAS + "{model}")
    known: dict[str, Any] = generated["$defs"]
    for schema in known.values():
        _add_ranges(schema)
    answers: Sequence[Any] = [o.answer for o in OPERATIONS if not isinstance(o.answer, str)]
    told = [kind for operation in OPERATIONS for kind in (*operation.others, operation.error)]
    events = [operation.event for operation in OPERATIONS if operation.event is not None]
    _, structs = msgspec.json.schema_components([*answers, *events, *told], ref_template=SCHEMAS + "{name}")
    return known | structs


def _add_ranges(schema: dict[str, Any]) -> None:
    """Add the engine's ranges of numbers, which the request types do not declare."""
    for field, (low, high, above) in RANGES.items():
        for kind in schema["properties"].get(field, {}).get("anyOf", ()):
            if kind.get("type") == "number":
                known = dict(kind)  # a path may be narrower than the engine
                kind |= {"exclusiveMinimum" if above else "minimum": low, "maximum": high} | known


NOT_OFFERED = {
    "assistants": "Assistants",
    "audio": "Audio",
    "complete": "Anthropic's text completion",
    "containers": "Containers",
    "conversations": "Conversations",
    "evals": "Evaluations",
    "fine_tuning": "Fine-tuning",
    "images": "Images",
    "moderations": "Moderation",
    "organization": "Administration",
    "organizations": "Administration",
    "realtime": "The realtime API",
    "skills": "Skills",
    "threads": "Assistants",
    "uploads": "Uploads in parts",
    "vector_stores": "Vector stores",
    "videos": "Videos",
}
"""Names of APIs that this server does not have, by the first part of their paths after /v1/."""


def not_offered(path: str) -> str | None:
    """Return the name of a known API that this server does not have; None for other paths."""
    root, version, family, *_ = [*path.split("/", 3), "", ""]
    return NOT_OFFERED.get(family) if (root, version) == ("", "v1") else None
