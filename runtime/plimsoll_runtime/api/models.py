"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from plimsoll_runtime.api.errors import json_response
from plimsoll_runtime.api.record import RequestRecord
from plimsoll_runtime.api.schemas.answers import ModelCard, ModelList
from plimsoll_runtime.api.table import ModelTable, ModelView, unknown_model

OWNER = "plimsoll"


async def list_models(_request: Request, models: ModelTable, _record: RequestRecord) -> Response:
    """All names that requests may use."""
    return json_response(ModelList([_card(name, view) for view in models.views() for name in view.names]))


async def show_model(request: Request, models: ModelTable, _record: RequestRecord) -> Response:
    """One of them. Raises ApiError (404)."""
    name = request.path_params["name"]
    views = models.views()
    for view in views:
        if name in view.names:
            return json_response(_card(name, view))
    raise unknown_model(name, (known for view in views for known in view.names))


def _card(name: str, view: ModelView) -> ModelCard:
    return ModelCard(name, view.created, OWNER, view.max_model_len, view.state or UNSET)
