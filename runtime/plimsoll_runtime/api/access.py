"""The outermost layer of the server: who may ask, when, and one line in the log for each request."""

from __future__ import annotations

import hmac
import logging
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from http import HTTPStatus

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from plimsoll_runtime.api.dialect import dialect_of
from plimsoll_runtime.api.errors import ApiError
from plimsoll_runtime.api.gateways import BELIEVED_HEADER, DIRECT
from plimsoll_runtime.api.ignored import HEADER as IGNORED_HEADER
from plimsoll_runtime.api.load import LOAD_HEADER
from plimsoll_runtime.api.metrics import Metrics
from plimsoll_runtime.api.record import RequestRecord
from plimsoll_runtime.api.state import Phase, ServerState

logger = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/health", "/live", "/metrics", "/openapi.json", "/docs"})
ALWAYS_PATHS = OPEN_PATHS | {"/version"}
CLIENT_GONE = 499
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Access:
    """Authenticates, admits while ready, counts what is in flight, logs. An ASGI application around another."""

    def __init__(self, app: ASGIApp, state: ServerState, metrics: Metrics) -> None:
        self._app = app
        self._state = state
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run as an ASGI application."""
        if scope["type"] != "http":
            return
        record = RequestRecord(request_id(Headers(scope=scope)))
        scope["plimsoll.record"] = record
        closing = self._state.phase is Phase.DRAINING
        answer = _Answer(send, record, closing=closing, id_header=dialect_of(scope).id_header)
        try:
            await self._guarded(scope, receive, answer, record)
        finally:
            self._report(scope, record, answer)

    async def _guarded(self, scope: Scope, receive: Receive, answer: _Answer, record: RequestRecord) -> None:
        path = scope["path"]
        try:
            if path not in OPEN_PATHS:
                record.tenant = self._tenant(Headers(scope=scope), answer)
            if path in ALWAYS_PATHS:
                await self._app(scope, receive, answer.send)
                return
            self._state.admit()
        except ApiError as error:
            await dialect_of(scope).response(error)(scope, receive, answer.send)
            return
        try:
            await self._app(scope, receive, answer.send)
        finally:
            self._state.release()

    def _tenant(self, headers: Headers, answer: _Answer) -> str:
        """Whose request it is. Raises ApiError for whoever may not ask.

        A gateway that is believed has checked a key already, and its answer says so. Where gateways are believed, all
        others without a key are one tenant that no gateway can name.
        """
        state = self._state
        named = state.gateways.tenant(headers)
        if named is not None:
            answer.believed = True
            return state.tenants.named(named)
        own = state.tenants.of(check_key(headers, state.api_keys))
        return own or (state.tenants.named(DIRECT) if state.gateways else "")

    def _report(self, scope: Scope, record: RequestRecord, answer: _Answer) -> None:
        if scope["path"] in ALWAYS_PATHS:
            return
        code = answer.status or CLIENT_GONE
        route = scope.get("route")
        self._metrics.observe(record, getattr(route, "path", "other"), code)
        first = "-" if record.first_token is None else f"{(record.first_token - record.started) * 1e3:.0f}ms"
        logger.info(
            "%s %s %s %d in %.0fms, first token %s, %d prompt tokens (%d cached), %d generated, %s%s",
            record.request_id,
            scope["method"],
            scope["path"][:200].encode("unicode_escape").decode(),
            code,
            (time.monotonic() - record.started) * 1e3,
            first,
            record.prompt_tokens,
            record.cached_tokens,
            record.completion_tokens,
            ",".join(sorted(set(record.finish_reasons))) or "-",
            "" if self._state.names else f", model {record.model or '-'}",
        )


class _Answer:
    """Watches an answer go out; adds the request's id, what of it was ignored and how busy its model is, and closes the
    connection of one that is leaving.
    """

    def __init__(self, send: Send, record: RequestRecord, *, closing: bool, id_header: str | None) -> None:
        self._send = send
        self._record = record
        self._closing = closing
        self._id_header = id_header
        self.status: int | None = None
        self.believed = False  # a gateway said whose request it is

    async def send(self, message: Message) -> None:
        """ASGI's send."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["X-Request-Id"] = self._record.request_id
            if self._id_header is not None:
                headers[self._id_header] = self._record.request_id
            if self._closing:
                headers["Connection"] = "close"
            if self.believed:
                headers[BELIEVED_HEADER] = "believed"
            if self._record.ignored:
                headers[IGNORED_HEADER] = self._record.ignored
            if self._record.load is not None:
                headers[LOAD_HEADER] = self._record.load()
        await self._send(message)


def check_key(headers: Mapping[str, str], keys: Sequence[str]) -> str | None:
    """The one of the keys that is given: after `Bearer` in Authorization, else in x-api-key, as Anthropic's clients
    send it. None where there are no keys. Raises ApiError (401) for any other.

    Takes the same time for any wrong one.
    """
    if not keys:
        return None
    scheme, _, given = headers.get("authorization", "").partition(" ")
    bearer = given.strip() if scheme.lower() == "bearer" else ""
    # Headers come as Latin-1, whatever the client wrote; its bytes are what is compared.
    token = (bearer or headers.get("x-api-key", "").strip()).encode("latin-1")
    matches = [hmac.compare_digest(token, key.encode()) for key in keys]
    if not any(matches):
        told = "Incorrect API key" if token else "Missing API key"
        raise ApiError(
            f"{told}: give a valid one in the header 'Authorization: Bearer KEY' or 'x-api-key: KEY'.",
            status=HTTPStatus.UNAUTHORIZED,
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )
    return keys[matches.index(True)]


def request_id(headers: Headers) -> str:
    """The client's own id where it is short and plain (the gateway keeps the same ones), else a new one."""
    given = headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
