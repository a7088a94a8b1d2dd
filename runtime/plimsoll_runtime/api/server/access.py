"""The outermost layer of the server: path normalisation, credentials, readiness, and a log line for each request."""

from __future__ import annotations

import logging
import re
import time
import uuid
from urllib.parse import unquote

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from plimsoll_runtime.api.http.concurrency import CLIENT_GONE
from plimsoll_runtime.api.http.deadlines import HEADER as TIMEOUT_HEADER
from plimsoll_runtime.api.http.deadlines import client_timeout
from plimsoll_runtime.api.http.errors import ApiError, dialect_of
from plimsoll_runtime.api.http.unknown_fields import HEADER as IGNORED_HEADER
from plimsoll_runtime.api.served_model import LOAD_HEADER
from plimsoll_runtime.api.server.credentials import BELIEVED_HEADER, CREDENTIAL_HEADER, DIRECT, given_key
from plimsoll_runtime.api.server.limits import BodyLimits
from plimsoll_runtime.api.server.state import Phase, ServerState
from plimsoll_runtime.api.telemetry.request_record import RequestRecord
from plimsoll_runtime.api.telemetry.request_reporter import RequestReporter
from plimsoll_telemetry.attributes import method_of
from plimsoll_telemetry.log_subject import SUBJECT, LogSubject

_SLASHES = re.compile("/{2,}")
_MODEL = re.compile("/+v1/+models/+(?=[^/])")
"""Matches what precedes the name of a model."""


def make_plain(scope: Scope) -> None:
    """Normalise a request's path to single slashes, with none at its end. Clients whose base URL ends in a slash send
    double ones."""
    path = scope["path"]
    if "//" in path or path.endswith("/"):
        scope["path"] = unquote(plain_path(scope["raw_path"].decode("ascii")))


def plain_path(path: str) -> str:
    """Normalise a path that is not decoded yet, as gateways do (tests/contract). Encoded slashes stay, and so do
    those in a model's name, which may contain two."""
    path = path.rstrip("/") or "/"
    if "//" not in path:
        return path
    if (head := _MODEL.match(path)) is not None:
        return f"/v1/models/{path[head.end() :]}"
    return _SLASHES.sub("/", path)


logger = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/health", "/live", "/metrics", "/openapi.json", "/docs"})
ALWAYS_PATHS = OPEN_PATHS | {"/version"}
ROOT = "/"
"""Answered at any time, also without a key. A key that is sent is checked. A server with keys names no models without
one."""
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Access:
    """Authenticates, admits while ready, counts requests in flight and logs them. An ASGI middleware."""

    def __init__(self, app: ASGIApp, state: ServerState, reporter: RequestReporter, limits: BodyLimits) -> None:
        self._app = app
        self._state = state
        self._reporter = reporter
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run as an ASGI application."""
        if scope["type"] != "http":
            return
        make_plain(scope)
        headers = Headers(scope=scope)
        record = self._reporter.begin(request_id(headers), headers, reported=scope["path"] not in ALWAYS_PATHS)
        scope["plimsoll.record"] = record
        self._limits.lay(scope)
        closing = self._state.phase is Phase.DRAINING
        answer = _Answer(send, record, closing=closing, id_header=dialect_of(scope).id_header)
        token = SUBJECT.set(LogSubject(record.request_id, record.trace, "".join(self._state.names[:1])))
        try:
            await self._guarded(scope, receive, answer, record)
        finally:
            self._report(scope, record, answer)
            SUBJECT.reset(token)

    async def _guarded(self, scope: Scope, receive: Receive, answer: _Answer, record: RequestRecord) -> None:
        path = scope["path"]
        try:
            if path not in OPEN_PATHS and not (path == ROOT and not self._is_claimed(Headers(scope=scope))):
                record.owner = self._owner(Headers(scope=scope), answer)
                record.tenant = self._state.tenants.cached_as(record.owner)
            if path in ALWAYS_PATHS or path == ROOT:
                await self._app(scope, receive, answer.send)
                return
            record.patience = client_timeout(Headers(scope=scope).get(TIMEOUT_HEADER))
            self._state.admit()
        except ApiError as error:
            await dialect_of(scope).response(error)(scope, receive, answer.send)
            return
        try:
            await self._app(scope, receive, answer.send)
        finally:
            self._state.release()

    def _is_claimed(self, headers: Headers) -> bool:
        """Return whether the request has a client's key or a gateway's credential, valid or not."""
        return bool(given_key(headers)) or CREDENTIAL_HEADER in headers

    def _owner(self, headers: Headers, answer: _Answer) -> str:
        """Return the tenant of a request; empty if neither keys nor gateways are configured. Raises ApiError for
        invalid credentials.

        A trusted gateway has checked a key already, and the response confirms it. If gateways are configured, all other
        requests without a key belong to one tenant that no gateway can name.
        """
        state = self._state
        named = state.gateways.tenant(headers)
        if named is not None:
            answer.believed = True
            return named
        own = state.tenants.of(state.api_keys.check(headers))
        return own or (DIRECT if state.gateways else "")

    def _report(self, scope: Scope, record: RequestRecord, answer: _Answer) -> None:
        if scope["path"] in ALWAYS_PATHS:
            return
        code = answer.status or CLIENT_GONE
        # A path and a method that are not of the API are text of the client, also the ids in a path.
        path, method = getattr(scope.get("route"), "path", "other"), method_of(scope["method"])
        self._reporter.ended(record, method, path, code)
        seconds = time.monotonic() - record.started
        waited = None if record.first_token is None else record.first_token - record.started
        ended = sorted(set(record.finish_reasons))
        fields = {
            "request_id": record.request_id,
            "method": method,
            "path": path,
            "status": code,
            "seconds": round(seconds, 6),
            "first_token_seconds": None if waited is None else round(waited, 6),
            "prompt_tokens": record.prompt_tokens,
            "cached_tokens": record.cached_tokens,
            "completion_tokens": record.completion_tokens,
            "finish_reasons": ended,
            "model": record.model or None,
            "trace_id": record.trace,
        }
        logger.info(
            "%s %s %s %d in %.0fms, first token %s, %d prompt tokens (%d cached), %d generated, %s%s",
            record.request_id,
            method,
            path,
            code,
            seconds * 1e3,
            "-" if waited is None else f"{waited * 1e3:.0f}ms",
            record.prompt_tokens,
            record.cached_tokens,
            record.completion_tokens,
            ",".join(ended) or "-",
            "" if self._state.names else f", model {record.model or '-'}",
            extra={"fields": fields, "alike": None},
        )


class _Answer:
    """Watches a response; adds the request's id, its ignored fields and its model's load, and closes the connection
    while the server drains."""

    def __init__(self, send: Send, record: RequestRecord, *, closing: bool, id_header: str | None) -> None:
        self._send = send
        self._record = record
        self._closing = closing
        self._id_header = id_header
        self.status: int | None = None
        self.believed = False  # a trusted gateway named the tenant

    async def send(self, message: Message) -> None:
        """Send an ASGI message."""
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


def request_id(headers: Headers) -> str:
    """Return the client's request id if it is short and plain (gateways keep the same ones), otherwise a new one."""
    given = headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
