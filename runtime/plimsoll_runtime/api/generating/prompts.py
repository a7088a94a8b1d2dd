"""Prompts to token ids; prompts and parameters that the model or the server cannot take are refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from plimsoll_runtime.api.generating.context_length import no_room, too_many_characters
from plimsoll_runtime.api.generating.earlier_calls import forms_of
from plimsoll_runtime.api.http.errors import ApiError
from plimsoll_runtime.api.schemas.chat import ChatMessage
from plimsoll_runtime.api.schemas.sampling import invalid
from plimsoll_runtime.api.served import ServedModel
from plimsoll_runtime.engine.limits import longest_sequence
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.reasoning.base import ReasoningFormat
from plimsoll_runtime.text.chat_template import ChatTemplate, ChatTemplateBoundsError, ChatTemplateError
from plimsoll_runtime.text.tokenizer import TextError

RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
"""What a template is always given; `chat_template_kwargs` may not replace it."""

MAX_PROMPT_SCORES = 2**20
"""Log probabilities of prompts in one answer. Each is some 75 bytes of JSON, and of memory until it is sent."""


def encode_text(model: ServedModel, text: str, *, add_special_tokens: bool, param: str) -> list[int]:
    """Token ids of a text. Raises ApiError."""
    check_text(model, text, param)
    with told(param):
        return model.tokenizer.encode(text, add_special_tokens=add_special_tokens)


def render_chat(
    model: ServedModel,
    messages: Sequence[ChatMessage],
    *,
    add_generation_prompt: bool | None,
    continue_final_message: bool | None,
    variables: Mapping[str, Any] | None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    reasoning: ReasoningFormat | None = None,
) -> str:
    """The text of a chat's prompt, in which earlier thoughts are as the `reasoning` format's templates know them. The
    template writes the special tokens itself.

    Raises ApiError, also for a variable that is a field of the request.
    """
    template = template_of(model)
    if reserved := sorted(RESERVED & (variables or {}).keys()):
        raise invalid("chat_template_kwargs", f"{reserved[0]!r} is a field of the request itself")
    images = model.image_parts
    shown = [message.rendered(f"messages[{index}]", images) for index, message in enumerate(messages)]
    rendered = _named_results(shown)
    if reasoning is not None:
        rendered = [reasoning.shown(message) for message in rendered]
    refusals: list[ChatTemplateError] = []
    with told("messages"):
        for form in forms_of(rendered):
            try:
                return template.render(
                    form,
                    tools=tools,
                    add_generation_prompt=add_generation_prompt is not False,
                    continue_final_message=bool(continue_final_message),
                    variables=variables,
                )
            except ChatTemplateBoundsError:
                raise
            except ChatTemplateError as error:
                refusals.append(error)
        raise refusals[0]


def template_of(model: ServedModel) -> ChatTemplate:
    """The model's chat template. Raises ApiError where it has none."""
    template = model.tokenizer.chat_template
    if template is None:
        raise ApiError(
            "The model has no chat template, so it cannot chat: use /v1/completions, "
            "or add chat_template.jinja to the model's files.",
            param="messages",
            code="no_chat_template",
        )
    return template


def variables_known(model: ServedModel, *, tools: bool) -> frozenset[str]:
    """What the model's chat template reads by name. Raises ApiError where it has none, or a broken one."""
    template = template_of(model)
    with told("messages"):
        return template.variables(tools=tools)


def _named_results(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The messages, in which results name the function that was called where a call before them says it."""
    names: dict[str | None, str] = {}
    shown: list[Mapping[str, Any]] = []
    for message in messages:
        names |= {call.get("id"): call["function"]["name"] for call in message.get("tool_calls") or ()}
        named = message["role"] == "tool" and "name" not in message and message.get("tool_call_id") in names
        shown.append({**message, "name": names[message["tool_call_id"]]} if named else message)
    return shown


def check_prompt(model: ServedModel, ids: Sequence[int], max_tokens: int | None, param: str) -> None:
    """Raises ApiError when the model cannot take this prompt, or not with so long an answer."""
    check_tokens(model, ids, param)
    wanted = max_tokens if max_tokens is not None else 1
    limit = longest_sequence(model.engine.info)
    if len(ids) + wanted > limit:
        raise no_room(limit, len(ids), max_tokens, param)


def check_tokens(model: ServedModel, ids: Sequence[int], param: str) -> None:
    """Raises ApiError for a prompt without tokens, or with one that is not in the vocabulary."""
    if not ids:
        raise ApiError(f"Invalid value for '{param}': it holds no tokens.", param=param, code="invalid_value")
    check_token_ids(model, [max(ids)], param)


def check_scores(answers: int, tokens: int, alternatives: int | None, param: str) -> None:
    """Raises ApiError where the `answers` together would tell too much of the `tokens` that their prompts have."""
    if alternatives is not None and (asked := answers * tokens * (1 + alternatives)) > MAX_PROMPT_SCORES:
        raise ApiError(
            f"Invalid value for '{param}': {alternatives} alternatives of each of {tokens} prompt tokens are {asked} "
            f"log probabilities in {answers} answer{'s' * (answers > 1)}, and {MAX_PROMPT_SCORES} is the most. "
            "Ask for fewer alternatives or answers, or shorten the prompt.",
            param=param,
            code="invalid_value",
        )


def check_params(model: ServedModel, params: SamplingParams) -> None:
    """Raises ApiError for parameters that are right in themselves but not for this model, or this server."""
    model.check_priority(params)
    if len(params.logit_bias) > model.max_logit_bias:
        raise ApiError(
            f"Invalid value for 'logit_bias': it has {len(params.logit_bias)} token ids, and this server takes at "
            f"most {model.max_logit_bias} (--max-logit-bias).",
            param="logit_bias",
            code="invalid_value",
        )
    check_token_ids(model, list(params.logit_bias), "logit_bias")
    check_token_ids(model, params.stop_token_ids, "stop_token_ids")


def check_token_ids(model: ServedModel, ids: Sequence[int], param: str) -> None:
    """Raises ApiError when an id is not in the vocabulary."""
    size = model.engine.info.vocab_size
    if unknown := [token_id for token_id in ids if token_id >= size]:
        raise ApiError(
            f"Invalid value for '{param}': token id {unknown[0]} is not in the vocabulary of {size}.",
            param=param,
            code="invalid_value",
        )


def check_text(model: ServedModel, text: str, param: str) -> None:
    """Refuse what is certainly too long before seconds are spent on tokenising it."""
    limit = longest_sequence(model.engine.info)
    if len(text) > limit * model.tokenizer.longest_piece:
        raise too_many_characters(limit, len(text), model.tokenizer.longest_piece, param)


@contextmanager
def told(param: str) -> Iterator[None]:
    """What cannot be encoded or rendered is the client's to hear, with the field's name."""
    try:
        yield
    except (ChatTemplateError, TextError) as error:
        raise ApiError(f"Invalid value for '{param}': {error}.", param=param, code="invalid_value") from error
