"""Prompts to token ids: renders chats, truncates prompts, and refuses prompts and parameters that the model or the
server does not support."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from plimsoll_runtime.api.http.errors import ApiError
from plimsoll_runtime.api.schemas.chat import ChatMessage
from plimsoll_runtime.api.schemas.sampling import SamplingFields, invalid
from plimsoll_runtime.api.served_model import ServedModel
from plimsoll_runtime.engine.limits import longest_sequence
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.reasoning.base import ReasoningFormat
from plimsoll_runtime.text.chat_template import ChatTemplate, ChatTemplateBoundsError, ChatTemplateError
from plimsoll_runtime.text.tokenizer import TextError
from plimsoll_runtime.tools.arguments import beginning_of, value_of

Messages = Sequence[Mapping[str, Any]]

_ID_LENGTH = 9
_NO_OBJECT = "arguments"
"""Key under which an object holds arguments that are not an object, for templates that accept only objects."""


def forms_of(messages: Messages) -> Iterator[Messages]:
    """Yield versions of the messages, one for each format of tool-call arguments and ids that a chat template may need;
    only one if there are no calls. In `messages`, arguments are text.

    A template reads arguments as an object, as a value that it writes as JSON, or as text that it puts between its
    markers. Templates of Mistral also accept only ids of nine characters. No template says which format it takes: it
    raises an error for the others, so they are tried in turn, the smallest change first.
    """
    forms: list[Messages] = []
    for identified in (messages, _with_short_ids(messages)):
        for arguments in (value_of, _object, _text):
            form = _with(identified, arguments)
            if form not in forms:
                forms.append(form)
                yield form


def _with(messages: Messages, arguments: Callable[[str], Any]) -> Messages:
    """Return the messages with the arguments of their tool calls converted."""

    def shown(call: Mapping[str, Any]) -> Mapping[str, Any]:
        function = call["function"]
        return {**call, "function": {**function, "arguments": arguments(function["arguments"])}}

    return [
        {**message, "tool_calls": [shown(call) for call in message["tool_calls"]]}
        if message.get("tool_calls")
        else message
        for message in messages
    ]


def _with_short_ids(messages: Messages) -> Messages:
    """Return the messages with ids of nine characters, the same for a call and its result."""

    def shown(call: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**call, "id": _short(call["id"])} if "id" in call else call

    return [
        {
            **message,
            **({"tool_calls": [shown(call) for call in message["tool_calls"]]} if message.get("tool_calls") else {}),
            **({"tool_call_id": _short(message["tool_call_id"])} if message.get("tool_call_id") else {}),
        }
        for message in messages
    ]


def _object(text: str) -> dict[str, Any]:
    """Return arguments as an object: the complete fields of cut-off JSON, and a value of another type under one key."""
    value = value_of(text)
    if isinstance(value, dict):
        return value
    found = beginning_of(text) if isinstance(value, str) else None
    return {_NO_OBJECT: value} if found is None else found


def _text(text: str) -> str:
    return text or "{}"


def _short(call_id: str) -> str:
    return call_id if len(call_id) == _ID_LENGTH else blake2b(call_id.encode()).hexdigest()[:_ID_LENGTH]


TOO_LONG = "context_length_exceeded"
"""Error code of a request that exceeds the context length."""


def too_long(limit: int, had: str, shorten: str, param: str) -> ApiError:
    """Return the error for a request that exceeds the context length. `had` says how long it is, `shorten` what to
    shorten.

    Agents recognise these words and shorten the conversation: "This model's maximum context length is N tokens"
    (litellm and what is built on it, Pi, opencode), "please reduce the length of" (OpenHands), and the code
    (LangChain, which looks for it in the message: OpenAI's client shows only that).
    """
    message = (
        f"This model's maximum context length is {limit} tokens. However, {had}. "
        f"Please reduce the length of {shorten} ({TOO_LONG})."
    )
    return ApiError(message, param=param, code=TOO_LONG)


def no_room(limit: int, prompt: int, answer: int | None, param: str) -> ApiError:
    """Return the error for a prompt that leaves no space for the output. `answer` is the requested limit of output
    tokens; None if the request has none, so that one token would do."""
    if answer is None:
        return too_long(
            limit, f"your {param} resulted in {prompt} tokens, and the output needs one more", f"the {param}", param
        )
    had = f"you requested {prompt + answer} tokens ({prompt} in the {param}, {answer} in the completion)"
    return too_long(limit, had, f"the {param} or completion", param)


def too_many_characters(limit: int, characters: int, longest_piece: int, param: str) -> ApiError:
    """Return the error for a text that is too long even if each token is as long as the longest one."""
    least = -(-characters // longest_piece)
    return too_long(
        limit, f"your {param} resulted in at least {least} tokens ({characters} characters)", f"the {param}", param
    )


RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
"""Variables that every template gets; `chat_template_kwargs` may not replace them."""

MAX_PROMPT_SCORES = 2**20
"""Most log probabilities of prompts in one response. Each is about 75 bytes of JSON, and of memory until it is sent."""


def encode_text(model: ServedModel, text: str, *, add_special_tokens: bool, param: str) -> list[int]:
    """Return the token ids of a text. Raises ApiError."""
    check_text(model, text, param)
    with prompt_errors(param):
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
    """Render a chat's prompt. Earlier reasoning is formatted for templates of the `reasoning` format. The template
    writes the special tokens itself.

    Raises ApiError, also for a variable that only the server may set (RESERVED).
    """
    template = template_of(model)
    if reserved := sorted(RESERVED & (variables or {}).keys()):
        raise invalid("chat_template_kwargs", f"{reserved[0]!r} is set by the server; leave it out")
    images = model.options.image_parts
    shown = [message.rendered(f"messages[{index}]", images) for index, message in enumerate(messages)]
    rendered = _named_results(shown)
    if reasoning is not None:
        rendered = [reasoning.shown(message) for message in rendered]
    refusals: list[ChatTemplateError] = []
    with prompt_errors("messages"):
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
    """Return the model's chat template. Raises ApiError if it has none."""
    template = model.tokenizer.chat_template
    if template is None:
        raise ApiError(
            "The model has no chat template; use /v1/completions, or add chat_template.jinja to the model's files.",
            param="messages",
            code="no_chat_template",
        )
    return template


def variables_known(model: ServedModel, *, tools: bool) -> frozenset[str]:
    """Return the names of the variables that the model's chat template reads. Raises ApiError if the template is
    missing or broken."""
    template = template_of(model)
    with prompt_errors("messages"):
        return template.variables(tools=tools)


def _named_results(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the messages with the function's name in each tool result whose call is known."""
    names: dict[str | None, str] = {}
    shown: list[Mapping[str, Any]] = []
    for message in messages:
        names |= {call.get("id"): call["function"]["name"] for call in message.get("tool_calls") or ()}
        named = message["role"] == "tool" and "name" not in message and message.get("tool_call_id") in names
        shown.append({**message, "name": names[message["tool_call_id"]]} if named else message)
    return shown


def check_prompt(model: ServedModel, ids: Sequence[int], max_tokens: int | None, param: str) -> None:
    """Raise ApiError if the prompt is empty or has a token outside the vocabulary, or if prompt and requested output
    together exceed the engine's longest sequence."""
    check_tokens(model, ids, param)
    wanted = max_tokens if max_tokens is not None else 1
    limit = longest_sequence(model.engine.info)
    if len(ids) + wanted > limit:
        raise no_room(limit, len(ids), max_tokens, param)


def check_tokens(model: ServedModel, ids: Sequence[int], param: str) -> None:
    """Raise ApiError for a prompt without tokens, or with a token that is not in the vocabulary."""
    if not ids:
        raise invalid(param, "it is empty (0 tokens); send at least one token")
    check_token_ids(model, [max(ids)], param)


def check_scores(answers: int, tokens: int, alternatives: int | None, param: str) -> None:
    """Raise ApiError if the response would have more than MAX_PROMPT_SCORES log probabilities of prompts: for each of
    `answers` choices and `tokens` prompt tokens, the token's own and `alternatives` more (None: none at all)."""
    if alternatives is not None and (asked := answers * tokens * (1 + alternatives)) > MAX_PROMPT_SCORES:
        raise invalid(
            param,
            f"{alternatives} alternatives of each of {tokens} prompt tokens are {asked} log probabilities in {answers} "
            f"choice{'s' * (answers > 1)}, above the limit of {MAX_PROMPT_SCORES}. "
            "Ask for fewer alternatives or choices, or shorten the prompt",
        )


def check_params(model: ServedModel, params: SamplingParams) -> None:
    """Raise ApiError for valid parameters that this model or this server does not support."""
    model.check_priority(params)
    if len(params.logit_bias) > model.options.max_logit_bias:
        limit = model.options.max_logit_bias
        reason = f"it has {len(params.logit_bias)} token ids, above this server's limit of {limit} (--max-logit-bias)"
        raise invalid("logit_bias", reason)
    check_token_ids(model, list(params.logit_bias), "logit_bias")
    check_token_ids(model, params.stop_token_ids, "stop_token_ids")


def check_token_ids(model: ServedModel, ids: Sequence[int], param: str) -> None:
    """Raise ApiError if an id is not in the vocabulary."""
    size = model.engine.info.vocab_size
    if unknown := [token_id for token_id in ids if token_id >= size]:
        raise invalid(param, f"token id {unknown[0]} is not in the vocabulary of {size} tokens")


def check_text(model: ServedModel, text: str, param: str) -> None:
    """Raise ApiError for a text that is certainly too long, before it takes seconds to tokenise."""
    limit = longest_sequence(model.engine.info)
    if len(text) > limit * model.tokenizer.longest_piece:
        raise too_many_characters(limit, len(text), model.tokenizer.longest_piece, param)


@contextmanager
def prompt_errors(param: str) -> Iterator[None]:
    """Raise ApiError that names `param` for text that cannot be encoded or rendered."""
    try:
        yield
    except (ChatTemplateError, TextError) as error:
        raise invalid(param, str(error)) from error


MARGIN = 64
"""Additional tokens at the start of a truncated text, because the first tokens depend on where the text starts."""


@dataclass(frozen=True, slots=True)
class Truncation:
    """The most tokens that a prompt keeps (its last ones), None for all; `piece` is the number of characters of the
    longest token."""

    most: int | None
    piece: int

    def text(self, text: str) -> str:
        """Return the end of the text, long enough to contain all tokens that are kept, so that the rest is not
        tokenised."""
        return text if self.most is None else text[-(self.most + MARGIN) * self.piece :]

    def ids(self, ids: list[int]) -> list[int]:
        """Return the last `most` tokens."""
        return ids if self.most is None else ids[-self.most :]


def truncation_of(body: SamplingFields, model: ServedModel, max_tokens: int | None) -> Truncation:
    """Return the truncation that a request asks for. If its `truncate_prompt_tokens` is -1, the prompt keeps as many
    tokens as leave space for `max_tokens` of output in the context."""
    wanted = body.truncate_prompt_tokens
    if wanted is not None and wanted < 0:
        wanted = max(1, longest_sequence(model.engine.info) - max(1, max_tokens or 1))
    return Truncation(wanted, model.tokenizer.longest_piece)
