"""The OpenAPI document, made of the types of requests and responses, and the paths of other servers that this one does
not offer.
"""

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
    "With `stream: true`: server-sent events, each named by the `type` of its data, which is JSON as `x-event` says. "
    "The last one is `message_stop`, or an AnthropicError where the request fails after its stream has begun."
)
_STREAM = (
    "With `stream: true`: server-sent events. The data of each is JSON as `x-event` says, that of the last one is "
    "`[DONE]`, or an ErrorAnswer where the request fails after its stream has begun. Streams of responses have the "
    "type of each event in a line of its own and no `[DONE]`: they end with `response.completed`, "
    "`response.incomplete`, `response.failed` or `error`."
)


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path. `answer` is a type, or the media type of what is no JSON of a type; `others` are types
    that it may have as well. `event` is the type of a stream's events, or a union of such types. `form`: the schema of
    a multipart request.
    """

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
    Operation("post", "/v1/chat/completions", "Answer a chat.", ChatAnswer, ChatRequest, event=ChatChunk),
    Operation(
        "post", "/v1/completions", "Go on with a text.", CompletionAnswer, CompletionRequest, event=CompletionAnswer
    ),
    Operation(
        "post", "/v1/responses", "Answer a turn of a conversation.", Response, ResponseRequest, event=ResponseEvent
    ),
    Operation(
        "post", "/v1/responses/input_tokens", "Count the tokens that it would read.", InputTokens, ResponseRequest
    ),
    Operation("get", "/v1/responses/{response_id}", "A response that is kept.", Response, event=ResponseEvent),
    Operation("delete", "/v1/responses/{response_id}", "Forget a response.", DeletedResponse),
    Operation("post", "/v1/responses/{response_id}/cancel", "Break off what runs in the background.", Response),
    Operation("get", "/v1/responses/{response_id}/input_items", "What a response was made from.", ItemList),
    Operation(
        "post",
        "/v1/messages",
        "Answer a chat in Anthropic's form.",
        MessageAnswer,
        MessagesRequest,
        event=Event,
        error=AnthropicError,
    ),
    Operation(
        "post",
        "/v1/messages/count_tokens",
        "How many tokens such a chat has.",
        TokenCount,
        CountRequest,
        error=AnthropicError,
    ),
    Operation("post", "/v1/embeddings", "Vectors of texts.", EmbeddingAnswer, EmbeddingRequest),
    Operation("post", "/v1/score", "How well pairs of texts go together.", ScoreAnswer, ScoreRequest),
    Operation("post", "/v1/rerank", "Documents by how well they answer a query.", RerankAnswer, RerankRequest),
    Operation("post", "/v2/rerank", "The same where Cohere's clients ask.", RerankAnswer, RerankRequest),
    Operation("post", "/v1/classify", "Labels of texts.", ClassifyAnswer, ClassifyRequest),
    Operation("post", "/v1/files", "Keep a file.", FileAnswer, form=UPLOAD),
    Operation("get", "/v1/files", "The files that are kept.", FileList),
    Operation("get", "/v1/files/{file_id}", "A file that is kept.", FileAnswer),
    Operation("delete", "/v1/files/{file_id}", "Delete a file.", FileDeleted),
    Operation("get", "/v1/files/{file_id}/content", "What is in a file.", "application/octet-stream"),
    Operation("post", "/v1/batches", "Answer the lines of a file, when there is time.", BatchAnswer, BatchRequest),
    Operation("get", "/v1/batches", "The batches that are kept.", BatchList),
    Operation("get", "/v1/batches/{batch_id}", "A batch that is kept.", BatchAnswer),
    Operation("post", "/v1/batches/{batch_id}/cancel", "End a batch early.", BatchAnswer),
    Operation(
        "get",
        "/v1/models",
        "The names that requests may use; a page in Anthropic's form where the header anthropic-version is sent.",
        ModelList,
        others=(AnthropicModels,),
    ),
    Operation("get", "/v1/models/{name}", "One of these names.", ModelCard, others=(AnthropicModel,)),
    Operation("post", "/tokenize", "Token ids of a text or a chat.", TokenizeAnswer, TokenizeRequest),
    Operation("post", "/detokenize", "The text of token ids.", DetokenizeAnswer, DetokenizeRequest),
    Operation(
        "get",
        "/",
        "What this server is and which models it has: a page for browsers, else JSON.",
        "text/html",
        others=(Welcome,),
    ),
    Operation("get", "/health", "Whether requests are taken: 200, else 503.", "application/json"),
    Operation("get", "/live", "That the process answers.", "application/json"),
    Operation("get", "/version", "The version of the software.", "application/json"),
    Operation("get", "/metrics", "Metrics in Prometheus' format.", "text/plain"),
    Operation("get", "/openapi.json", "This document.", "application/json"),
    Operation("get", "/docs", "This document, to be read.", "text/html"),
)


PROBES = ("/health", "/live")
"""What supervisors ask, who look at the status."""


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
"""What may stand behind a path."""


def document() -> dict[str, Any]:
    """The document (OpenAPI 3.1)."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Plimsoll runtime",
            "version": VERSION,
            "description": "Models behind an API in OpenAI's shape. Fields of a request that are not known are left "
            f"aside and named in the header {HEADER}, or refused (400) with --strict-parameters.",
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
    answer: dict[str, Any] = {"description": "The answer.", "content": content}
    if operation.request is not None:
        told = f"Paths of the fields that were left aside, at most {LIMIT} bytes; escaped as in a URL."
        answer["headers"] = {HEADER: {"description": told, "schema": {"type": "string", "maxLength": LIMIT}}}
    described: dict[str, Any] = {"summary": operation.summary, "responses": {"200": answer}}
    if parameters := _parameters(operation):
        described["parameters"] = parameters
    if operation.path.startswith("/v1/") or operation.request is not None:
        described["responses"]["default"] = {"description": "Why there is none.", "content": _json(operation.error)}
    if operation.path in PROBES:
        described["responses"]["503"] = {"description": "Not now.", "content": content}
    if operation.request is not None:
        described["requestBody"] = {"required": True, "content": _json(operation.request)}
    if operation.form is not None:
        described["requestBody"] = {"required": True, "content": {"multipart/form-data": {"schema": operation.form}}}
    return described


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    """What stands in the path, and behind it."""
    names = re.findall(r"{(\w+)}", operation.path)
    within = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    query = QUERIES.get((operation.method, operation.path), {})
    return [*within, *({"name": name, "in": "query", "schema": schema} for name, schema in query.items())]


def _any_of(*kinds: type) -> dict[str, Any]:
    """The schema of what has one of these types."""
    schemas = [{"$ref": SCHEMAS + kind.__name__} for kind in kinds]
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _json(*kinds: type) -> dict[str, Any]:
    """The content of a body that has one of these types."""
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
    """What the engine says of numbers, of which the requests' own types know nothing."""
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
"""By the first part of the path after /v1/."""


def not_offered(path: str) -> str | None:
    """What a path would be, where it is known and not offered."""
    root, version, family, *_ = [*path.split("/", 3), "", ""]
    return NOT_OFFERED.get(family) if (root, version) == ("", "v1") else None
