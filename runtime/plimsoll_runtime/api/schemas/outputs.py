"""What chat and completions answer: whole, or in chunks. Field names and nulls are OpenAI's."""

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
"""What is told of one token of a prompt, by token id. It is JSON already: a prompt may have a hundred thousand."""

TopScores = Annotated[
    msgspec.Raw, msgspec.Meta(extra_json_schema={"type": "object", "additionalProperties": {"type": "number"}})
]
"""Log probabilities of the likeliest tokens, by their text. JSON already, as above."""

PromptLogprobs = list[TokenScores | None]


class ErrorDetails(msgspec.Struct):
    """What was wrong and what to do. `param` names the field at fault as clients write it: messages[0].content."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(msgspec.Struct):
    """What is answered with any status from 400 on; in a stream that has begun, its last event."""

    error: ErrorDetails


class PromptTokensDetails(msgspec.Struct):
    """How many of the prompt's tokens came out of the prefix cache."""

    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct):
    """How many of the generated tokens were thoughts, with what marks them."""

    reasoning_tokens: int


class Usage(msgspec.Struct):
    """What a request took. With n > 1 a prompt counts once. Details of what was generated are told of models that
    think.
    """

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | msgspec.UnsetType = msgspec.UNSET


class TopLogprob(msgspec.Struct):
    """One alternative of a chat answer's token."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(msgspec.Struct):
    """One token of a chat answer and its alternatives."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """The tokens of a chat answer, or of a chunk of it."""

    content: list[ChatLogprob]
    refusal: None = None


class FunctionCall(msgspec.Struct):
    """A function and its arguments, a JSON object as text. In a chunk, what it adds to them."""

    name: str | msgspec.UnsetType = msgspec.UNSET
    arguments: str = ""


INCOMPLETE = "incomplete"
"""The status of a call whose arguments are cut off."""


class CallAnswer(msgspec.Struct):
    """A call of a tool. The `status` of one whose arguments are cut off is "incomplete"; whole ones have none."""

    id: str
    type: str
    function: FunctionCall
    status: str | msgspec.UnsetType = msgspec.UNSET


class CallDelta(msgspec.Struct):
    """What a chunk adds to call number `index`; the first has its id and the function's name. If its arguments are cut
    off, its last chunk has the `status` "incomplete".
    """

    index: int
    function: FunctionCall
    id: str | msgspec.UnsetType = msgspec.UNSET
    type: str | msgspec.UnsetType = msgspec.UNSET
    status: str | msgspec.UnsetType = msgspec.UNSET


class ChatAnswerMessage(msgspec.Struct):
    """What the model said, and what it thought before; no content where it only calls. `function_call` answers a
    request with `functions`.
    """

    role: str
    content: str | None
    refusal: None = None
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[CallAnswer] | msgspec.UnsetType = msgspec.UNSET
    function_call: FunctionCall | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct):
    """One whole answer. `stop_reason`: the stop string or token id that ended it."""

    index: int
    message: ChatAnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatAnswer(msgspec.Struct, tag_field="object", tag="chat.completion"):
    """All answers to a chat."""

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
    """What a chunk adds to one answer."""

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
    """One whole completion, or what a chunk adds to it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | msgspec.UnsetType | None = msgspec.UNSET
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType | None = msgspec.UNSET
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class CompletionAnswer(msgspec.Struct, tag_field="object", tag="text_completion"):
    """All completions, or one event of their stream."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    system_fingerprint: str
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET


class Welcome(msgspec.Struct):
    """What a server is and where its parts are. `models`: the names that requests may use; left out where a key is
    needed and none came.
    """

    name: str
    models: list[str] | msgspec.UnsetType = msgspec.UNSET
    api: str = "/v1"
    docs: str = "/docs"
    openapi: str = "/openapi.json"


class ModelCard(msgspec.Struct, tag_field="object", tag="model"):
    """A name that requests may use. `max_model_len` is null for a model that was never loaded yet; `state` says where
    one of several is: Resident, InHost or OnDisk where it sleeps, or on its way. `task`: what it is served for, and
    `endpoints` those that answer for it, once it was loaded; `abilities`: of structured_outputs, chat, tools and
    reasoning those that it has. `about`: what a person should know of it before talking to it.
    """

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
    """All names."""

    data: list[ModelCard]
