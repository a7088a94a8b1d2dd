"""Paths that the gateway answers without a replica: probes, metrics, welcome page, API reference and model list."""

from __future__ import annotations

from collections.abc import Mapping

from plimsoll_gateway.discovery.routing_table import RoutingTable, TableStore
from plimsoll_gateway.errors.dialects import ANTHROPIC, MODELS
from plimsoll_gateway.keys.keyring import Keyring, given_key
from plimsoll_gateway.pages import PAGES, POLICY, page_at
from plimsoll_gateway.pages.model_list import MODEL_PREFIX, ModelList, names_for
from plimsoll_gateway.pages.operations import show_metrics
from plimsoll_gateway.pages.welcome import base_url, wants_page, welcome_json, welcome_page
from plimsoll_gateway.proxy.exchange import Exchange
from plimsoll_gateway.routing.model_cards import ModelCards
from plimsoll_gateway.telemetry.metrics import Metrics
from plimsoll_telemetry.exposition import PATH as METRICS

PROBES = frozenset(["/health", "/live", METRICS])
ROOT = "/"
OPEN = PROBES | PAGES.keys() | {ROOT}
"""Paths that need no key."""
OWN = OPEN | {MODELS}
JSON, HTML = b"application/json", b"text/html; charset=utf-8"


class OwnPaths:
    """Answers the paths in OWN and those of single models; with `metrics_apart`, not /metrics."""

    def __init__(
        self, store: TableStore, keyring: Keyring, metrics: Metrics, cards: ModelCards, *, metrics_apart: bool
    ) -> None:
        self._store = store
        self._keyring = keyring
        self._metrics = metrics
        self._model_list = ModelList(cards)
        self._paths = OWN - {METRICS} if metrics_apart else OWN
        self._draining = False

    def __contains__(self, path: str) -> bool:
        return path in self._paths or path.startswith(MODEL_PREFIX)

    def drain(self) -> None:
        """Answer 503 to /health from this call on."""
        self._draining = True

    async def answer(self, exchange: Exchange) -> None:
        """Answer a request for one of the paths that this object contains. Raises Refusal."""
        exchange.allow("GET", "HEAD")
        exchange.own = exchange.path in OPEN
        if not exchange.own:
            exchange.route = MODELS
            exchange.key = self._keyring.authenticate(exchange.headers)
        stream, table = exchange.stream, self._store.current
        match exchange.path:
            case "/live":
                await stream.whole(200, JSON, b'{"status": "ok"}')
            case "/health":
                status, word = self._health()
                await stream.whole(status, JSON, b'{"status": "%s"}' % word)
            case "/":
                await self._welcome(exchange, table)
            case path if path == METRICS:
                await show_metrics(stream, self._metrics, exchange.headers.get(b"accept"))
            case path if path in PAGES:
                kind, text = page_at(path)
                await stream.whole(200, kind, text, POLICY)
            case path:
                query, anthropic = exchange.scope["query_string"], stream.dialect is ANTHROPIC
                told = await self._model_list.answer(table, path, query, exchange.key, anthropic=anthropic)
                await stream.whole(200, JSON, told)

    async def _welcome(self, exchange: Exchange, table: RoutingTable | None) -> None:
        """Send the welcome page. If keys are required, it lists models for a valid key only. Raises Refusal for a
        wrong key.
        """
        headers, keyed = exchange.headers, self._keyring.keys is not None
        if keyed and given_key(headers):
            exchange.key = self._keyring.authenticate(headers)
        hidden = keyed and exchange.key is None
        names = None if hidden else names_for(table, exchange.key)
        own = [*POLICY, (b"cache-control", b"no-store"), (b"vary", b"accept, authorization, x-api-key")]
        accept, host, forwarded = (_text(headers, name) for name in (b"accept", b"host", b"x-forwarded-proto"))
        if wants_page(accept or ""):
            base = base_url(host, exchange.scope.get("scheme", "http"), forwarded)
            await exchange.stream.whole(200, HTML, welcome_page(names, base, key=keyed), own)
        else:
            await exchange.stream.whole(200, JSON, welcome_json(names), own)

    def _health(self) -> tuple[int, bytes]:
        if self._draining:
            return 503, b"draining"
        return (503, b"starting") if self._store.current is None else (200, b"ok")


def _text(headers: Mapping[bytes, bytes], name: bytes) -> str | None:
    found = headers.get(name)
    return None if found is None else found.decode("latin-1")
