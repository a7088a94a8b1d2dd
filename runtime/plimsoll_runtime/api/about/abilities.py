"""What a model that generates can be asked for, beside words: lists of models say so."""

from __future__ import annotations

from collections.abc import Callable

from plimsoll_runtime.api.chat.calling import tool_format_of
from plimsoll_runtime.api.chat.thinking import reasoning_format
from plimsoll_runtime.api.generating.prompts import template_of
from plimsoll_runtime.api.http.errors import ApiError
from plimsoll_runtime.api.served import ServedModel
from plimsoll_runtime.api.tasks import task_of
from plimsoll_runtime.text.chat_template import ChatTemplateError


def abilities_of(model: ServedModel) -> list[str]:
    """Of `structured_outputs`, `chat`, `tools` and `reasoning` those that it has; none where it generates nothing."""
    if task_of(model.engine.info) != "generate":
        return []
    asked: dict[str, Callable[[], object]] = {
        "structured_outputs": lambda: True,
        "chat": lambda: template_of(model).source(tools=False),
        "tools": lambda: tool_format_of(model, "tools"),
        "reasoning": lambda: reasoning_format(model, tools=False),
    }
    return [ability for ability, ask in asked.items() if _is_there(ask)]


def _is_there(ask: Callable[[], object]) -> bool:
    """Whether there is an answer: where a request would be refused, there is none."""
    try:
        return bool(ask())
    except (ApiError, ChatTemplateError):
        return False
