"""GET /v1/models and /v1/models/{id}, in OpenAI's or Anthropic's format, with each model's abilities."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from plimsoll_runtime.api.chat.reasoning import reasoning_format
from plimsoll_runtime.api.chat.tools import tool_format_of
from plimsoll_runtime.api.generation.prompts import template_of
from plimsoll_runtime.api.http.errors import ApiError, json_response, speaks_anthropic
from plimsoll_runtime.api.http.queries import whole_number
from plimsoll_runtime.api.model_directory import ENDPOINTS, ModelTable, ModelView, task_of, unknown_model
from plimsoll_runtime.api.schemas.message_events import AnthropicModel, AnthropicModels
from plimsoll_runtime.api.schemas.outputs import ModelCard, ModelList
from plimsoll_runtime.api.schemas.sampling import invalid
from plimsoll_runtime.api.served_model import ServedModel
from plimsoll_runtime.api.telemetry.request_record import RequestRecord
from plimsoll_runtime.text.chat_template import ChatTemplateError


def abilities_of(model: ServedModel) -> list[str]:
    """Return a model's abilities, of `structured_outputs`, `chat`, `tools` and `reasoning`; none if it generates
    nothing."""
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
    """Return whether `ask` returns a true value; ApiError and ChatTemplateError count as no."""
    try:
        return bool(ask())
    except (ApiError, ChatTemplateError):
        return False


OWNER = "plimsoll"
PAGE = 20
MOST_OF_A_PAGE = 1000


async def list_models(request: Request, models: ModelTable, _record: RequestRecord) -> Response:
    """List all served names; Anthropic's clients get a page of them. Raises ApiError."""
    views = {name: view for view in models.views() for name in view.names}
    if not speaks_anthropic(request.scope):
        return json_response(ModelList([_card(name, view) for name, view in views.items()]))
    page, more = page_of(list(views), request.query_params)
    ends = (page[0], page[-1]) if page else (None, None)
    return json_response(AnthropicModels([_anthropic_model(name, views[name]) for name in page], more, *ends))


async def show_model(request: Request, models: ModelTable, _record: RequestRecord) -> Response:
    """Return one model. Raises ApiError (404)."""
    name = request.path_params["name"]
    views = models.views()
    for view in views:
        if name in view.names:
            anthropic = speaks_anthropic(request.scope)
            return json_response(_anthropic_model(name, view) if anthropic else _card(name, view))
    raise unknown_model(name, (known for view in views for known in view.names))


def page_of(names: Sequence[str], query: Mapping[str, str]) -> tuple[Sequence[str], bool]:
    """Return `limit` names after `after_id` or before `before_id`, and whether more follow in that direction.

    Raises ApiError.
    """
    limit = whole_number(query, "limit", 1, MOST_OF_A_PAGE) or PAGE
    after, before = (_place(names, query, field) for field in ("after_id", "before_id"))
    if after is not None and before is not None:
        raise invalid("before_id", "give 'after_id' or 'before_id', not both")
    if before is not None:
        return names[max(0, before - limit) : before], before > limit
    start = 0 if after is None else after + 1
    return names[start : start + limit], len(names) > start + limit


def _place(names: Sequence[str], query: Mapping[str, str], field: str) -> int | None:
    if field not in query:
        return None
    try:
        return names.index(query[field])
    except ValueError:
        raise invalid(field, "the list has no model with that id") from None


def _card(name: str, view: ModelView) -> ModelCard:
    card = ModelCard(name, view.created, OWNER, view.max_model_len, view.state or UNSET)
    if view.task is not None:
        card.task, card.endpoints = view.task, list(ENDPOINTS[view.task])
    if view.served is not None:
        card.abilities = abilities_of(view.served)
        card.about = view.served.about or UNSET
    return card


def _anthropic_model(name: str, view: ModelView) -> AnthropicModel:
    created = datetime.fromtimestamp(view.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return AnthropicModel(name, name, created, view.max_model_len, view.max_model_len)
