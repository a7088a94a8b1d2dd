"""Checks a chat request and makes it a `Generation`. All endpoints with chats use it; each has its own response
format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from plimsoll_runtime.api.chat.output_reader import AnswerReader
from plimsoll_runtime.api.chat.reasoning import (
    LEVEL,
    NO_WISH,
    USUAL,
    ReasoningOptions,
    Thinking,
    reasoning_format,
    thinking,
    unheard_effort,
    variables_of,
)
from plimsoll_runtime.api.chat.tools import ToolUse, tool_use_of
from plimsoll_runtime.api.generation.choices import GenerationRequest, UsageMeter, plan_choices
from plimsoll_runtime.api.generation.generation import Answers, Generation
from plimsoll_runtime.api.generation.prompts import (
    check_params,
    encode_text,
    render_chat,
    truncation_of,
    variables_known,
)
from plimsoll_runtime.api.generation.schema_warnings import (
    CHAT,
    EnforcedSchema,
    Fields,
    instead_of_form,
    set_format_warnings,
    set_warnings,
)
from plimsoll_runtime.api.http.unknown_fields import with_more
from plimsoll_runtime.api.schemas.chat import ChatRequest
from plimsoll_runtime.api.schemas.sampling import invalid
from plimsoll_runtime.api.served_model import ServedModel
from plimsoll_runtime.api.telemetry.request_record import RequestRecord
from plimsoll_runtime.engine.limits import longest_sequence
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams

VERBOSITY = "verbosity"
Form = Callable[[Callable[[], AnswerReader], Generation, UsageMeter], Answers]
"""Creates the `Answers` of a chat. Its first argument creates the reader of one output."""


def converse(
    body: ChatRequest,
    model: ServedModel,
    record: RequestRecord,
    form: Form,
    wish: ReasoningOptions = NO_WISH,
    *,
    cut: bool = False,
    fields: Fields = CHAT,
) -> Generation:
    """Check a chat without the engine, and return it ready to run. Raises ApiError.

    With `cut`, the output's token limit is reduced to what the context length allows. `fields` are the names that the
    client's request has for the fields of a chat.
    """
    body.check()
    called = tool_use_of(body, model)
    record.phases.end("check")
    prompt = _prompt(body, called, wish, model)
    record.phases.end("template")
    _tell_unheard(body, called, model, record, fields)
    thinks = thinking(body, model, wish, called, prompt)
    if called and called.form is not None and thinks and thinks.format.name == called.format.name:
        reason = (
            "this model writes tool calls and reasoning in one format, so tools cannot be combined with a constraint"
        )
        raise invalid(body.constraint_field, reason)
    kept = EnforcedSchema(None, ()) if called is None else called.kept_to(model, fields)
    set_format_warnings(record, body, fields)
    set_warnings(record, kept.unenforced)
    params = _params(body, called, thinks, model, kept)
    check_params(model, params)
    record.phases.end("check")
    ids = _encoded(body, prompt, model)
    record.phases.end("tokenise")
    most = body.token_limit
    if cut and most is not None:
        most = max(1, min(most, longest_sequence(model.engine.info) - len(ids)))
        params = msgspec.structs.replace(params, max_tokens=most)
    wanted = GenerationRequest([ids], params, "messages", n=body.choices, max_tokens=most, cache_salt=body.cache_salt)
    constrained_by = body.constraint_field if called is None else called.field
    choices = plan_choices(model, wanted, record)
    answers = partial(form, partial(AnswerReader, called, thinks))
    job = Generation(model, choices, record, answers, constrained_by)
    if called is None:
        return replace(job, instead=partial(instead_of_form, body, fields))
    return replace(job, instead=partial(called.instead, model, fields))


def tokens_of(body: ChatRequest, model: ServedModel, wish: ReasoningOptions = NO_WISH) -> list[int]:
    """Return the token ids of a chat's prompt. Raises ApiError."""
    body.check()
    return _encoded(body, _prompt(body, tool_use_of(body, model), wish, model), model)


def _params(
    body: ChatRequest, called: ToolUse | None, thinks: Thinking | None, model: ServedModel, kept: EnforcedSchema
) -> SamplingParams:
    params = body.sampling_params(
        max_tokens=body.token_limit,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        prompt_logprobs=body.prompt_logprobs,
        stop=model.chat_stop,
        constraint=kept.constraint,
        recommended=model.recommended,
    )
    if thinks is not None:
        params = msgspec.structs.replace(params, thought=thinks.thought)
    if (called is not None and called.format.special) or (thinks is not None and thinks.special):
        params = msgspec.structs.replace(params, skip_special_tokens=False)
    return params


def _tell_unheard(
    body: ChatRequest, called: ToolUse | None, model: ServedModel, record: RequestRecord, fields: Fields
) -> None:
    """Record as ignored the reasoning effort, the verbosity and the template variables that the chat template does not
    read. Raises ApiError instead if the server refuses unknown fields."""

    def ignore(param: str, reason: str, names: Sequence[str]) -> None:
        if model.options.strict_parameters:
            raise invalid(param, reason)
        record.ignored = with_more(record.ignored, names)

    tools = called is not None
    if (reason := unheard_effort(body, model, tools=tools)) is not None:
        ignore(LEVEL, reason, [fields.effort])
    if body.verbosity not in (None, USUAL) and VERBOSITY not in variables_known(model, tools=tools):
        reason = f"this model's chat template does not use it; leave it out or send {USUAL!r}"
        ignore(VERBOSITY, reason, [fields.verbosity])
    if not body.chat_template_kwargs:
        return
    if unread := sorted(body.chat_template_kwargs.keys() - variables_known(model, tools=tools)):
        reason = f"this model's chat template does not use {unread[0]!r}; leave it out"
        ignore("chat_template_kwargs", reason, [f"chat_template_kwargs.{name}" for name in unread])


def _prompt(body: ChatRequest, called: ToolUse | None, wish: ReasoningOptions, model: ServedModel) -> str:
    return render_chat(
        model,
        body.messages,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        variables=_verbosity(body, called, model) | variables_of(body, model, wish, tools=called is not None),
        tools=None if called is None else called.shown,
        reasoning=reasoning_format(model, tools=called is not None),
    )


def _verbosity(body: ChatRequest, called: ToolUse | None, model: ServedModel) -> dict[str, Any]:
    """Return the template variable for `verbosity`, or nothing if the template does not use it."""
    if body.verbosity is None or VERBOSITY not in variables_known(model, tools=called is not None):
        return {}
    return {VERBOSITY: body.verbosity}


def _encoded(body: ChatRequest, prompt: str, model: ServedModel) -> list[int]:
    truncation = truncation_of(body, model, body.token_limit)
    special = bool(body.add_special_tokens)
    ids = encode_text(model, truncation.text(prompt), add_special_tokens=special, param="messages")
    return truncation.ids(ids)
