"""From a chat to a job, the same way for every endpoint that chats: each says only how its answers look."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from plimsoll_runtime.api.calling import Calling, calling
from plimsoll_runtime.api.choices import Wanted, plan_choices
from plimsoll_runtime.api.generation import Answers, Generation
from plimsoll_runtime.api.prompts import check_params, encode_chat
from plimsoll_runtime.api.reading import AnswerReader
from plimsoll_runtime.api.record import RequestRecord
from plimsoll_runtime.api.schemas.chat import ChatRequest
from plimsoll_runtime.api.served import ServedModel
from plimsoll_runtime.api.usage import UsageMeter
from plimsoll_runtime.engine.limits import longest_sequence

Form = Callable[[Callable[[], AnswerReader], Generation, UsageMeter], Answers]
"""Begins the answers to a chat. What it is given first makes the reader of each."""


def converse(
    body: ChatRequest, model: ServedModel, record: RequestRecord, form: Form, *, cut: bool = False
) -> Generation:
    """Check everything that can be known before the engine is asked. Raises ApiError.

    With `cut` an answer may have fewer tokens than asked for: those that the model's context has room for.
    """
    body.check()
    called = calling(body, model)
    params = body.sampling_params(
        max_tokens=body.token_limit,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        prompt_logprobs=body.prompt_logprobs,
        stop=model.chat_stop,
        constraint=None if called is None else called.constraint(model),
    )
    if called is not None and called.format.special:
        params = msgspec.structs.replace(params, skip_special_tokens=False)
    check_params(model, params)
    ids = _encoded(body, called, model)
    most = body.token_limit
    if cut and most is not None:
        most = max(1, min(most, longest_sequence(model.engine.info) - len(ids)))
        params = msgspec.structs.replace(params, max_tokens=most)
    wanted = Wanted([ids], params, "messages", n=body.choices, max_tokens=most, cache_salt=body.cache_salt)
    constrained_by = body.constraint_field if called is None else called.field
    choices = plan_choices(model, wanted, record)
    return Generation(model, choices, record, partial(form, partial(AnswerReader, called)), constrained_by)


def tokens_of(body: ChatRequest, model: ServedModel) -> list[int]:
    """What the model would read. Raises ApiError."""
    body.check()
    return _encoded(body, calling(body, model), model)


def _encoded(body: ChatRequest, called: Calling | None, model: ServedModel) -> list[int]:
    return encode_chat(
        model,
        body.messages,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        variables=body.chat_template_kwargs,
        add_special_tokens=body.add_special_tokens,
        tools=None if called is None else called.shown,
    )
