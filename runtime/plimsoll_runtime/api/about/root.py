"""GET /: what this server is and which models it has, for people and for programs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from plimsoll_runtime.api.about.abilities import abilities_of
from plimsoll_runtime.api.about.docs import POLICY
from plimsoll_runtime.api.about.welcome import base_url, chat_with, page, template, wants_page
from plimsoll_runtime.api.callers.keys import given_key
from plimsoll_runtime.api.http.errors import json_response
from plimsoll_runtime.api.schemas.answers import Welcome
from plimsoll_runtime.api.state import ServerState
from plimsoll_runtime.api.table import ModelView

TITLE = "Plimsoll runtime"
ABOUT = "A server of language models, with the APIs of OpenAI and Anthropic."
HEADERS = {"Content-Security-Policy": POLICY, "Cache-Control": "no-store", "Vary": "Accept, Authorization, X-Api-Key"}
_TEXT = "What is the capital of France?"
_BODIES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "embed": ("/v1/embeddings", {"input": _TEXT}),
    "classify": ("/v1/classify", {"input": _TEXT}),
    "score": ("/v1/score", {"text_1": _TEXT, "text_2": "Paris is the capital of France."}),
}
"""What to ask a model that generates nothing, by its task."""


def root(state: ServerState) -> Callable[[Request], Awaitable[Response]]:
    """The handler. A key that came was checked before; without one, where one is needed, no model is named."""
    text = template(TITLE, ABOUT)

    async def answer(request: Request) -> Response:
        headers = request.headers
        keyed = state.api_keys.needed
        views = () if state.models is None else state.models.views()
        names: Sequence[str] | None = [name for view in views for name in view.names] or state.names
        if keyed and not given_key(headers):
            names, views = None, ()
        if not wants_page(headers.get("accept", "")):
            return json_response(Welcome(TITLE, UNSET if names is None else list(names)), headers=HEADERS)
        base = base_url(headers.get("host"), request.url.scheme, headers.get("x-forwarded-proto"))
        asks = _asks(views[0]) if views else chat_with(names[0] if names else None)
        return HTMLResponse(page(text, names, base, asks, key=keyed), headers=HEADERS)

    return answer


def _asks(view: ModelView) -> tuple[str, Mapping[str, Any]]:
    """A request that the model answers."""
    name = view.names[0]
    if (other := _BODIES.get(view.task or "")) is not None:
        return other[0], {"model": name, **other[1]}
    if view.served is not None and "chat" not in abilities_of(view.served):
        return "/v1/completions", {"model": name, "prompt": "The capital of France is"}
    return chat_with(name)
