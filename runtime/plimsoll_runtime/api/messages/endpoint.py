"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from plimsoll_runtime.api.chat.conversation import converse, tokens_of
from plimsoll_runtime.api.endpoint import Endpoint
from plimsoll_runtime.api.generating.generation import Generation
from plimsoll_runtime.api.http.record import RequestRecord
from plimsoll_runtime.api.messages.answer import MessageAnswers
from plimsoll_runtime.api.messages.translation import FIELDS, OWN_NAMES, chat_of, own_names, wish_of
from plimsoll_runtime.api.schemas.message_events import TokenCount
from plimsoll_runtime.api.schemas.messages import CountRequest, MessagesRequest
from plimsoll_runtime.api.served import ServedModel
from plimsoll_runtime.api.table import ModelTable
from plimsoll_runtime.api.tokens import answer_by_tokenizer


def prepare(body: MessagesRequest, model: ServedModel, record: RequestRecord) -> Generation:
    """Check everything that can be known before the engine is asked. Raises ApiError."""
    with own_names():
        chat = chat_of(body, model.image_parts)
        form = partial(MessageAnswers, body)
        job = converse(chat, model, record, form, wish_of(body), cut=True, fields=FIELDS)
    own = OWN_NAMES.get(job.constrained_by, job.constrained_by)
    return replace(job, constrained_by=own, counted=body.max_tokens > 0)


def _count(body: CountRequest, model: ServedModel, record: RequestRecord) -> TokenCount:
    with own_names():
        count = len(tokens_of(chat_of(body, model.image_parts), model, wish_of(body)))
    record.prompt_tokens = count
    return TokenCount(count)


async def count_tokens(request: Request, models: ModelTable, record: RequestRecord) -> Response:
    """How many tokens a conversation has. Raises ApiError, ClientGoneError."""
    return await answer_by_tokenizer(request, models, record, CountRequest, _count)


messages = Endpoint(MessagesRequest, prepare)
