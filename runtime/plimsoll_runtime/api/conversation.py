"""From a chat to a job, the same way for every endpoint that chats: each says only how its answers look."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from plimsoll_runtime.api.calling import calling
from plimsoll_runtime.api.choices import Wanted, plan_choices
from plimsoll_runtime.api.generation import Answers, Generation
from plimsoll_runtime.api.prompts import check_params, encode_chat
from plimsoll_runtime.api.reading import AnswerReader
from plimsoll_runtime.api.record import RequestRecord
from plimsoll_runtime.api.schemas.chat import ChatRequest
from plimsoll_runtime.api.served import ServedModel
from plimsoll_runtime.api.usage import UsageMeter

Form = Callable[[Callable[[], AnswerReader], Generation, UsageMeter], Answers]
"""Begins the answers to a chat. What it is given first makes the reader of each."""


def converse(body: ChatRequest, model: ServedModel, record: RequestRecord, form: Form) -> Generation:
    """Check everything that can be known before the engine is asked. Raises ApiError."""
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
    ids = encode_chat(
        model,
        body.messages,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        variables=body.chat_template_kwargs,
        add_special_tokens=body.add_special_tokens,
        tools=None if called is None else called.shown,
    )
    wanted = Wanted([ids], params, "messages", n=body.choices, max_tokens=body.token_limit, cache_salt=body.cache_salt)
    constrained_by = body.constraint_field if called is None else called.field
    choices = plan_choices(model, wanted, record)
    return Generation(model, choices, record, partial(form, partial(AnswerReader, called)), constrained_by)
