"""Responses and chunks of chat and completions. Field names and nulls are OpenAI's."""

from __future__ import annotations

from typing import Annotated

import msgspec

_SCORE = {
    "type": "object",
    "properties": {
        "logprob": {"type": "number"},
        "rank": {"type": "integer"},
        "decoded_token": {"type": "string"},
    },
    "required": ["logprob", "rank", "decoded_token"],
}

TokenScores = Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"type": "object", "additionalProperties": _SCORE})]
"""Log probabilities at one token of a prompt, by token id. Encoded in advance: a prompt may have a hundred thousand
tokens."""

TopScores = Annotated[
    msgspec.Raw, msgspec.Meta(extra_json_schema={"type": "object", "additionalProperties": {"type": "number"}})
]
"""Log probabilities of the likeliest tokens, by their text. Already encoded as JSON, like `TokenScores`."""

PromptLogprobs = list[TokenScores | None]


class ErrorDetails(msgspec.Struct):
    """What is wrong and what to do. `param` is the path of the invalid field as clients write it:
    messages[0].content."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(msgspec.Struct):
    """The body of every response with a status from 400; also the last event of a stream that fails after its start."""

    error: ErrorDetails


class PromptTokensDetails(msgspec.Struct):
    """How many prompt tokens came from the prefix cache."""

    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct):
    """How many generated tokens were reasoning and its markers."""

    reasoning_tokens: int


class Usage(msgspec.Struct):
    """Token counts of a request. With n > 1 a prompt counts once. Details of the output exist for models with
    reasoning."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | msgspec.UnsetType = msgspec.UNSET


class TopLogprob(msgspec.Struct):
    """One of the likeliest tokens at the position of an output token."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(msgspec.Struct):
    """One token of a chat's output and its alternatives."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """The tokens of a chat's output, or of a chunk of it."""

    content: list[ChatLogprob]
    refusal: None = None


class FunctionCall(msgspec.Struct):
    """A function and its arguments, a JSON object as text. In a chunk, the part that it adds."""

    name: str | msgspec.UnsetType = msgspec.UNSET
    arguments: str = ""


INCOMPLETE = "incomplete"
"""Status of a tool call whose arguments were cut off."""


class CallAnswer(msgspec.Struct):
    """A tool call. Its `status` is "incomplete" if its arguments were cut off; complete calls have none."""

    id: str
    type: str
    function: FunctionCall
    status: str | msgspec.UnsetType = msgspec.UNSET


class CallDelta(msgspec.Struct):
    """What a chunk adds to call number `index`; the first chunk has the id and the function's name. If the arguments
    were cut off, the last chunk has the `status` "incomplete"."""

    index: int
    function: FunctionCall
    id: str | msgspec.UnsetType = msgspec.UNSET
    type: str | msgspec.UnsetType = msgspec.UNSET
    status: str | msgspec.UnsetType = msgspec.UNSET


class ChatAnswerMessage(msgspec.Struct):
    """The output: its text and its reasoning; no content if it only calls tools. `function_call` is for requests
    with `functions`."""

    role: str
    content: str | None
    refusal: None = None
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[CallAnswer] | msgspec.UnsetType = msgspec.UNSET
    function_call: FunctionCall | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct):
    """One complete choice. `stop_reason` is the stop string or token id that ended it."""

    index: int
    message: ChatAnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatAnswer(msgspec.Struct, tag_field="object", tag="chat.completion"):
    """All choices of a chat."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType | None = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatDelta(msgspec.Struct):
    """What a chunk adds to a message."""

    role: str | msgspec.UnsetType = msgspec.UNSET
    content: str | msgspec.UnsetType = msgspec.UNSET
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[CallDelta] | msgspec.UnsetType = msgspec.UNSET
    function_call: FunctionCall | msgspec.UnsetType = msgspec.UNSET


class ChatChunkChoice(msgspec.Struct):
    """What a chunk adds to one choice."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | msgspec.UnsetType = msgspec.UNSET
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatChunk(msgspec.Struct, tag_field="object", tag="chat.completion.chunk"):
    """One event of a chat's stream."""

    id: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    system_fingerprint: str
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class CompletionLogprobs(msgspec.Struct):
    """Tokens, with the offset of each in the choice's text."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[TopScores | None]


class CompletionChoice(msgspec.Struct):
    """One complete choice, or what a chunk adds to it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | msgspec.UnsetType | None = msgspec.UNSET
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType | None = msgspec.UNSET
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class CompletionAnswer(msgspec.Struct, tag_field="object", tag="text_completion"):
    """All choices, or one event of their stream."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    system_fingerprint: str
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET


class Welcome(msgspec.Struct):
    """The server's name and the paths of its API. `models` are the served names; left out if the request lacks a
    required key."""

    name: str
    models: list[str] | msgspec.UnsetType = msgspec.UNSET
    api: str = "/v1"
    docs: str = "/docs"
    openapi: str = "/openapi.json"


class ModelCard(msgspec.Struct, tag_field="object", tag="model"):
    """A served name. `max_model_len` is null until the model was loaded once; `state` is its sleep level on a host:
    Resident, InHost, OnDisk, or a transition. `task` is the model's task and `endpoints` the paths that serve it,
    once it was loaded; `abilities` are those it has of structured_outputs, chat, tools and reasoning. `about` is a
    note for people who start to use the model."""

    id: str
    created: int
    owned_by: str
    max_model_len: int | None
    state: str | msgspec.UnsetType = msgspec.UNSET
    task: str | msgspec.UnsetType = msgspec.UNSET
    endpoints: list[str] | msgspec.UnsetType = msgspec.UNSET
    abilities: list[str] | msgspec.UnsetType = msgspec.UNSET
    about: str | msgspec.UnsetType = msgspec.UNSET


class ModelList(msgspec.Struct, tag_field="object", tag="list"):
    """All served names."""

    data: list[ModelCard]
