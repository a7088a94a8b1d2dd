"""Reasoning in a chat: the variables for the chat template, and the markers by which the output's reasoning is
found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from plimsoll_runtime.api.chat.tools import ToolUse
from plimsoll_runtime.api.generation.prompts import template_of, variables_known
from plimsoll_runtime.api.schemas.chat import ChatRequest
from plimsoll_runtime.api.schemas.sampling import invalid
from plimsoll_runtime.api.served_model import ServedModel
from plimsoll_runtime.engine.protocol.sampling_params import ReasoningMarkers
from plimsoll_runtime.reasoning.base import ReasoningFormat
from plimsoll_runtime.reasoning.registry import fitting, named
from plimsoll_runtime.text.chat_template import ChatTemplateError
from plimsoll_runtime.text.tokenizer import Tokenizer
from plimsoll_runtime.tools.base import UnknownFormat

SWITCHES = ("enable_thinking", "thinking")
"""Names that templates use for the variable that switches reasoning on or off."""
LEVEL, BUDGET = "reasoning_effort", "thinking_budget"
OFF, USUAL = "none", "medium"
"""OpenAI's level for no reasoning, and its default level, which a model without levels treats as its usual
behaviour."""

# Tokens of the formats' fixed texts: encoding them for each request would cost 20 us a text.
_encoded: WeakKeyDictionary[Tokenizer, dict[str, tuple[int, ...]]] = WeakKeyDictionary()

# Looking for formats of other packages reads the installed distributions, so it runs once for each template or name,
# not for each request.
_fitting = lru_cache(64)(fitting)
_named = lru_cache(64)(named)


@dataclass(frozen=True, slots=True)
class ReasoningOptions:
    """A client's wishes for reasoning, whatever the model; models without reasoning ignore them. None leaves a setting
    open.

    `thinks` switches reasoning on or off, `budget` is the most reasoning tokens, `effort` is one of OpenAI's levels.
    """

    thinks: bool | None = None
    budget: int | None = None
    effort: str | None = None


NO_WISH = ReasoningOptions()


@dataclass(frozen=True, slots=True)
class Thinking:
    """How the model writes its reasoning, whether the prompt has opened it, and the markers for the engine. `special`
    says that the markers contain special tokens."""

    format: ReasoningFormat
    opened: bool
    thought: ReasoningMarkers
    special: bool


def reasoning_format(model: ServedModel, *, tools: bool) -> ReasoningFormat | None:
    """Return the reasoning format of the server's options, or else the one that fits the chat template; None if the
    model writes no reasoning. Raises ApiError."""
    try:
        if model.options.reasoning_format is not None:
            return _named(model.options.reasoning_format)
        return _fitting(template_of(model).source(tools=tools))
    except UnknownFormat as error:
        raise invalid("model", str(error)) from error
    except ChatTemplateError as error:
        raise invalid("messages", str(error)) from error


def variables_of(body: ChatRequest, model: ServedModel, wish: ReasoningOptions, *, tools: bool) -> dict[str, Any]:
    """Return variables for the chat template: those that the request's reasoning fields and the server's budget imply,
    and the client's own (`chat_template_kwargs`), which take precedence. Raises ApiError for a level that the template
    does not accept."""
    known = variables_known(model, tools=tools)
    said: dict[str, Any] = {}
    if wish.thinks is not None:
        said |= dict.fromkeys(known.intersection(SWITCHES), wish.thinks)
    if wish.effort is not None and LEVEL in known:
        levels = _levels(model, tools=tools)
        said |= {LEVEL: wish.effort} if levels is None or wish.effort in levels else {}
    if body.reasoning_effort is not None:
        said |= _effort(body.reasoning_effort, known, model, tools=tools)
    budget = _budget(body, wish, model)
    if budget is not None and BUDGET in known:
        said[BUDGET] = budget
    return said | (body.chat_template_kwargs or {})


def unheard_effort(body: ChatRequest, model: ServedModel, *, tools: bool) -> str | None:
    """Return why the chat template cannot use the requested reasoning level; None if it can, or none is requested.

    It raises no error, because agents send a level to every model.
    """
    known = variables_known(model, tools=tools)
    if body.reasoning_effort is None or LEVEL in known:
        return None
    if known.isdisjoint(SWITCHES):
        return "this model's chat template has no reasoning levels and cannot switch reasoning off; leave it out"
    if body.reasoning_effort in (OFF, USUAL):
        return None
    return (
        f"this model's chat template has no reasoning levels; send {OFF!r} for no reasoning or {USUAL!r} for reasoning"
    )


def thinking(
    body: ChatRequest, model: ServedModel, wish: ReasoningOptions, called: ToolUse | None, prompt: str
) -> Thinking | None:
    """Return the reasoning settings of a request, None if the model writes no reasoning. Raises ApiError."""
    form = reasoning_format(model, tools=called is not None)
    if form is None:
        if body.most_thoughts is not None:
            raise invalid(
                body.budget_field,
                "this model's reasoning format is not known; start the server with --reasoning-format",
            )
        return None
    opened = form.opened_by(prompt) or _is_within(body, form)
    thought = _thought(form, model.tokenizer, called, opened=opened, budget=_budget(body, wish, model))
    if prompt.rstrip().endswith(form.marks.end):  # the prompt has closed the output's reasoning in advance
        thought = msgspec.structs.replace(thought, opening=None)
    marks = _ids(model.tokenizer, form.marks.begin + form.marks.end)
    return Thinking(form, opened, thought, not model.tokenizer.special_ids.isdisjoint(marks))


def _budget(body: ChatRequest, wish: ReasoningOptions, model: ServedModel) -> int | None:
    given = (body.most_thoughts, wish.budget, model.options.thinking_budget)
    return next((budget for budget in given if budget is not None), None)


def _effort(effort: str, known: frozenset[str], model: ServedModel, *, tools: bool) -> dict[str, Any]:
    """Return the template variables for a reasoning level: the level and the switch (off for the level `none`), each if
    the template reads it. Raises ApiError for a level that the model does not have."""
    switch = next((name for name in SWITCHES if name in known), None)
    said = {} if switch is None else {switch: effort != OFF}
    if LEVEL not in known:
        return said
    levels = _levels(model, tools=tools)
    if levels is not None and effort not in levels:
        raise invalid(LEVEL, f"this model has the levels {', '.join(levels)}, not {effort!r}")
    return {LEVEL: effort} | said


def _levels(model: ServedModel, *, tools: bool) -> Sequence[str] | None:
    """Return the reasoning levels of the model's format, None if it does not define them."""
    form = reasoning_format(model, tools=tools)
    return None if form is None else form.efforts


def _is_within(body: ChatRequest, form: ReasoningFormat) -> bool:
    """Return whether the message that the output continues ends within reasoning."""
    content = body.messages[-1].content
    if not body.continue_final_message or not isinstance(content, str):
        return False
    return content.rfind(form.marks.begin) > content.rfind(form.marks.end)


def _thought(
    form: ReasoningFormat, tokenizer: Tokenizer, called: ToolUse | None, *, opened: bool, budget: int | None
) -> ReasoningMarkers:
    marks = form.marks
    then = _firsts(tokenizer, marks.then if called is not None else marks.then[:1])
    closing = [(token,) for token in _ids(tokenizer, marks.closing)]
    answer = marks.answer
    if answer is not None and called is not None and called.format.name == form.name:
        answer = ()  # the grammar of its tool calls defines where reasoning may be
    gap = "" if called is not None and not called.required else marks.gap  # text may start with any white space
    barred = (tokenizer.token_id(text) for text in marks.implied)
    return ReasoningMarkers(
        begin=marks.begin.encode(),
        end=marks.end.encode(),
        open=opened,
        anywhere=marks.anywhere,
        budget=budget,
        closing=(*closing, then) if then else tuple(closing),
        answer=None if answer is None else tuple(text.encode() for text in answer),
        steer=None if marks.steer is None else (marks.steer[0].encode(), _firsts(tokenizer, marks.steer[1])),
        opening=tokenizer.token_id(marks.begin) if marks.answer is None else None,
        gap=_ids(tokenizer, gap),
        implied=tuple(text.encode() for text in marks.implied),
        barred=tuple(token for token in barred if token is not None),
    )


def _firsts(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[int, ...]:
    """Return the first token of each text."""
    return tuple(_ids(tokenizer, text)[0] for text in texts)


def _ids(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """Return the tokens of a format's fixed text, which is encoded once."""
    known = _encoded.setdefault(tokenizer, {})
    if text not in known:
        known[text] = tuple(tokenizer.encode(text, add_special_tokens=False)) if text else ()
    return known[text]
