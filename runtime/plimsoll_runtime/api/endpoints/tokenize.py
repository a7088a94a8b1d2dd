"""POST /tokenize and /detokenize: schemas and handlers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, TypeVar

import msgspec
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from plimsoll_runtime.api.chat.reasoning import reasoning_format
from plimsoll_runtime.api.generation.prompts import check_token_ids, encode_text, render_chat
from plimsoll_runtime.api.http.body import Head, read_body, read_head, read_rest
from plimsoll_runtime.api.http.concurrency import offload, unless_gone
from plimsoll_runtime.api.http.errors import ApiError, json_response
from plimsoll_runtime.api.http.unknown_fields import ignored, refuse_unknown
from plimsoll_runtime.api.model_directory import ModelTable
from plimsoll_runtime.api.schemas.chat import MAX_MESSAGES, ChatMessage
from plimsoll_runtime.api.schemas.messages import CountRequest
from plimsoll_runtime.api.schemas.sampling import Lenient, TokenId
from plimsoll_runtime.api.served_model import ServedModel
from plimsoll_runtime.api.telemetry.request_record import RequestRecord
from plimsoll_runtime.engine.limits import longest_sequence


class TokenizeRequest(Lenient):
    """Either `prompt` (a text) or `messages` (a chat, rendered with the model's template)."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Lenient):
    """Token ids to decode, special tokens included."""

    model: str | None = None
    tokens: list[TokenId]


class TokenizeAnswer(msgspec.Struct, omit_defaults=True):
    """Token ids; `token_strs` if requested."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeAnswer(msgspec.Struct):
    """The text of the token ids."""

    prompt: str


BodyT = TypeVar("BodyT", TokenizeRequest, DetokenizeRequest, CountRequest)


async def tokenize(request: Request, models: ModelTable, record: RequestRecord) -> Response:
    """Return the token ids of a text or a chat. Raises ApiError, ClientGoneError."""
    return await answer_by_tokenizer(request, models, record, TokenizeRequest, _tokenize)


async def detokenize(request: Request, models: ModelTable, record: RequestRecord) -> Response:
    """Return the text of token ids. Raises ApiError, ClientGoneError."""
    return await answer_by_tokenizer(request, models, record, DetokenizeRequest, _detokenize)


async def answer_by_tokenizer(
    request: Request,
    models: ModelTable,
    record: RequestRecord,
    schema: type[BodyT],
    work: Callable[[BodyT, ServedModel, RequestRecord], msgspec.Struct],
) -> Response:
    """Answer a request that needs only a model's tokenizer. Raises ApiError, ClientGoneError."""
    data = await read_body(request)

    async def answer() -> Response:
        head = await offload(len(data), partial(read_head, data, schema))
        async with models.lease(head.model, len(data)) as model:
            return await offload(len(data), partial(on_model, head, model))

    def on_model(head: Head | BodyT, model: ServedModel) -> Response:
        body = read_rest(data, head, schema)
        record.model, record.key, record.ignored = model.names[0], model.key, ignored(body)
        if model.options.strict_parameters:
            refuse_unknown(body)
        return json_response(work(body, model, record))

    return await unless_gone(request.receive, answer())


def _tokenize(body: TokenizeRequest, model: ServedModel, record: RequestRecord) -> TokenizeAnswer:
    ids = _encode(body, model)
    record.prompt_tokens = len(ids)
    answer = TokenizeAnswer(len(ids), longest_sequence(model.engine.info), ids)
    if body.return_token_strs:
        answer.token_strs = [model.tokenizer.token_text(token_id) for token_id in ids]
    return answer


def _detokenize(body: DetokenizeRequest, model: ServedModel, record: RequestRecord) -> DetokenizeAnswer:
    check_token_ids(model, body.tokens, "tokens")
    record.prompt_tokens = len(body.tokens)
    return DetokenizeAnswer(model.tokenizer.decode(body.tokens, skip_special_tokens=False))


def _encode(body: TokenizeRequest, model: ServedModel) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise ApiError("Give either 'prompt' or 'messages'.", param="prompt", code="missing_required_parameter")
    if body.prompt is not None:
        special = body.add_special_tokens is not False
        return encode_text(model, body.prompt, add_special_tokens=special, param="prompt")
    text = render_chat(
        model,
        body.messages or (),
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        variables=body.chat_template_kwargs,
        reasoning=reasoning_format(model, tools=False),
    )
    return encode_text(model, text, add_special_tokens=bool(body.add_special_tokens), param="messages")
