"""GET /: a page (for browsers) or JSON about this server, its models, and a command that sends a request."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from html import escape
from string import Template
from typing import Any

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from plimsoll_runtime.api.endpoints.models import abilities_of
from plimsoll_runtime.api.http.errors import json_response
from plimsoll_runtime.api.model_directory import ModelView
from plimsoll_runtime.api.openapi.html import POLICY, STYLE
from plimsoll_runtime.api.schemas.outputs import Welcome
from plimsoll_runtime.api.server.credentials import given_key
from plimsoll_runtime.api.server.state import ServerState

MOST_NAMES = 50
"""Most models that the page lists."""
HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252})|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")
"""Hosts that are safe in a command that people copy into a shell."""
UNKNOWN_HOST = "HOST"
CHAT = "/v1/chat/completions"
KEY_NEEDED = "An API key is required, also to list the models here."
NO_MODELS = "There is no model yet."
_WEIGHT = re.compile(r"q=(1(?:\.0{0,3})?|0(?:\.[0-9]{0,3})?)")


def template(title: str, about: str) -> str:
    """Return the page with `$models` and `$command` as placeholders.

    A gateway shows the same page. It imports nothing of the runtime, so `gateway_pages` writes the template as a
    file for it, and tests/contract compares both renderings.
    """
    return "\n".join(
        [
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
            f"<style>{STYLE}</style></head><body><h1>{escape(title)}</h1>",
            f'<p>{escape(about)} <a href="docs">All paths and fields</a>; for programs: '
            '<a href="openapi.json">openapi.json</a>.</p>',
            "<h2>Models</h2>",
            "$models",
            "<h2>Send a request</h2>",
            "<pre><code>$command</code></pre>",
            "</body></html>",
        ]
    )


def page(source: str, names: Sequence[str] | None, base: str, asks: tuple[str, Mapping[str, Any]], *, key: bool) -> str:
    """Fill in a template. `names` is None if a key is needed to list models. `asks`, the path and body of a request,
    becomes a command for the server at `base`; with `key`, the command sends an API key."""
    return Template(source).substitute(models=_listed(names), command=escape(command(base, asks, key=key)))


def base_url(host: str | None, scheme: str, forwarded: str | None) -> str:
    """Return the URL by which the client reached this server. `forwarded` is the header X-Forwarded-Proto of a proxy
    that terminates TLS."""
    secure = scheme == "https" or forwarded == "https"
    known = host if host is not None and HOST.fullmatch(host) else UNKNOWN_HOST
    return f"{'https' if secure else 'http'}://{known}"


def chat_with(name: str | None) -> tuple[str, Mapping[str, Any]]:
    """Return the path and body of an example chat request to the model `name` (None: a placeholder)."""
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    return CHAT, {"model": name or "MODEL", "messages": messages}


def command(base: str, asks: tuple[str, Mapping[str, Any]], *, key: bool) -> str:
    """Return the command line that sends a request, safe to copy into a shell."""
    path, body = asks
    header = ' -H "Authorization: Bearer $PLIMSOLL_API_KEY"' if key else ""
    return f"curl {base}{path}{header} -H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}"


def wants_page(accept: str) -> bool:
    """Return whether a client names HTML in its Accept header, as browsers do, and does not prefer JSON."""
    weights: dict[str, float] = {}
    for part in accept[:1000].lower().split(","):
        kind, *parameters = (piece.strip() for piece in part.split(";"))
        found = next((match for piece in parameters if (match := _WEIGHT.fullmatch(piece))), None)
        weights[kind] = 1.0 if found is None else float(found[1])
    html = weights.get("text/html", 0.0)
    return html > 0 and html >= weights.get("application/json", 0.0)


def _listed(names: Sequence[str] | None) -> str:
    if not names:
        return f"<p>{KEY_NEEDED if names is None else NO_MODELS}</p>"
    items = "".join(f"<li><code>{escape(name)}</code></li>" for name in names[:MOST_NAMES])
    more = f"<p>And {len(names) - MOST_NAMES} more: <code>GET /v1/models</code>.</p>" if names[MOST_NAMES:] else ""
    return f"<ul>{items}</ul>{more}"


TITLE = "Plimsoll runtime"
ABOUT = "A server for language models, with the APIs of OpenAI and Anthropic."
HEADERS = {"Content-Security-Policy": POLICY, "Cache-Control": "no-store", "Vary": "Accept, Authorization, X-Api-Key"}
_TEXT = "What is the capital of France?"
_BODIES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "embed": ("/v1/embeddings", {"input": _TEXT}),
    "classify": ("/v1/classify", {"input": _TEXT}),
    "score": ("/v1/score", {"text_1": _TEXT, "text_2": "Paris is the capital of France."}),
}
"""Example requests by task, for models that do not generate."""


def root(state: ServerState) -> Callable[[Request], Awaitable[Response]]:
    """Return the handler of GET /. A key in the request was checked before; if a key is needed and missing, no model
    is named."""
    text = template(TITLE, ABOUT)

    async def answer(request: Request) -> Response:
        headers = request.headers
        keyed = state.api_keys.needed
        views = state.views()
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
    """Return the path and body of an example request that the model supports."""
    name = view.names[0]
    if (other := _BODIES.get(view.task or "")) is not None:
        return other[0], {"model": name, **other[1]}
    if view.served is not None and "chat" not in abilities_of(view.served):
        return "/v1/completions", {"model": name, "prompt": "The capital of France is"}
    return chat_with(name)
