"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from plimsoll_runtime.api.errors import json_response
from plimsoll_runtime.api.record import RequestRecord
from plimsoll_runtime.api.schemas.answers import ModelCard, ModelList
from plimsoll_runtime.api.served import ServedModel
from plimsoll_runtime.engine.limits import longest_sequence

OWNER = "plimsoll"


async def list_models(_request: Request, model: ServedModel, _record: RequestRecord) -> Response:
    """All names that requests may use."""
    return json_response(ModelList([_card(name, model) for name in model.names]))


async def show_model(request: Request, model: ServedModel, _record: RequestRecord) -> Response:
    """One of them. Raises ApiError (404)."""
    name = request.path_params["name"]
    model.check_name(name)
    return json_response(_card(name, model))


def _card(name: str, model: ServedModel) -> ModelCard:
    return ModelCard(name, model.created, OWNER, longest_sequence(model.engine.info))
