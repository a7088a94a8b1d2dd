"""The response to `/`: a small page for browsers, or the same data as JSON for programs.

The runtime shows the same page from the same template; tests/contract compares both.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib.resources import files
from string import Template

TITLE = "Plimsoll gateway"
MOST_NAMES = 50
HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252})|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")
"""Hosts that may appear in a command that people copy into a shell."""
UNKNOWN_HOST = "HOST"
_WEIGHT = re.compile(r"q=(1(?:\.0{0,3})?|0(?:\.[0-9]{0,3})?)")


def welcome_page(names: Sequence[str] | None, base: str, *, key: bool) -> bytes:
    """Return the page. `names` None: models are hidden, since a key is required. With `key`, the command in the page
    sends an API key.
    """
    command = escape(_command(base, names[0] if names else "MODEL", key=key))
    return _template().substitute(models=_listed(names), command=command).encode()


def welcome_json(names: Sequence[str] | None) -> bytes:
    """Return the data of the page as JSON."""
    shown = {} if names is None else {"models": list(names)}
    return json.dumps({"name": TITLE, **shown, "api": "/v1", "docs": "/docs", "openapi": "/openapi.json"}).encode()


def base_url(host: str | None, scheme: str, forwarded: str | None) -> str:
    """Return the URL at which the client reached this gateway. `forwarded`: X-Forwarded-Proto of a proxy that
    terminates TLS.
    """
    secure = scheme == "https" or forwarded == "https"
    known = host if host is not None and HOST.fullmatch(host) else UNKNOWN_HOST
    return f"{'https' if secure else 'http'}://{known}"


def wants_page(accept: str) -> bool:
    """Return whether a client accepts HTML explicitly, as browsers do, and does not prefer JSON."""
    weights: dict[str, float] = {}
    for part in accept[:1000].lower().split(","):
        kind, *parameters = (piece.strip() for piece in part.split(";"))
        found = next((match for piece in parameters if (match := _WEIGHT.fullmatch(piece))), None)
        weights[kind] = 1.0 if found is None else float(found[1])
    html = weights.get("text/html", 0.0)
    return html > 0 and html >= weights.get("application/json", 0.0)


@cache
def _template() -> Template:
    return Template((files(__package__) / "welcome.html").read_text(encoding="utf-8"))


def _command(base: str, name: str, *, key: bool) -> str:
    body = {"model": name, "messages": [{"role": "user", "content": "What is the capital of France?"}]}
    header = ' -H "Authorization: Bearer $PLIMSOLL_API_KEY"' if key else ""
    asked = f"curl {base}/v1/chat/completions{header} -H 'Content-Type: application/json'"
    return f"{asked} -d {shlex.quote(json.dumps(body))}"


def _listed(names: Sequence[str] | None) -> str:
    if names is None:
        return "<p>An API key is required, also to list the models here.</p>"
    if not names:
        return "<p>There is no model yet.</p>"
    items = "".join(f"<li><code>{escape(name)}</code></li>" for name in names[:MOST_NAMES])
    more = f"<p>And {len(names) - MOST_NAMES} more: <code>GET /v1/models</code>.</p>" if names[MOST_NAMES:] else ""
    return f"<ul>{items}</ul>{more}"
