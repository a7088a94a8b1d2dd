"""Refusals of the gateway, each with its status; in OpenAI's shape unless the path has another dialect (`dialects`)."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from difflib import get_close_matches

import msgspec

from plimsoll_cluster.decode_errors import UNREADABLE
from plimsoll_gateway.discovery.routing_table import Model
from plimsoll_gateway.errors.unsupported_paths import not_offered

# An error that lists every model of a large cluster would help nobody.
MOST_NAMES_LISTED = 50
MOST_NAMES_COMPARED = 200
LONGEST_NAME_COMPARED = 128
RETRY_AFTER_SECONDS = 5
UNAVAILABLE = 503
ANTHROPIC_OVERLOADED = 529
"""What Anthropic's clients are told in place of 503."""


class Refusal(Exception):
    """An answer with an error status. `headers` are added to the response."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        headers: Sequence[tuple[str, str]] = (),
        kind: str | None = None,
    ) -> None:
        """`kind` is OpenAI's `type` where the status does not tell it."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.headers = tuple(headers)
        self.kind = kind or ("invalid_request_error" if status < 500 else "server_error")

    @property
    def body(self) -> bytes:
        """The error as JSON (pure ASCII, so that any text that a client sent can be quoted)."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return json.dumps({"error": error}).encode("ascii")

    @property
    def event(self) -> bytes:
        """The error as one server-sent event, for a stream that has begun."""
        return b"data: " + self.body + b"\n\n"


def bad_request(message: str, *, param: str | None = None, code: str = "invalid_request") -> Refusal:
    """400: the body cannot be understood."""
    return Refusal(400, message, code=code, param=param)


def missing_key() -> Refusal:
    """401: the gateway has keys, and the request has none."""
    return _unauthorized("Missing API key. Give yours in the header 'Authorization: Bearer KEY' or 'x-api-key: KEY'.")


def wrong_key() -> Refusal:
    """401: nobody has this key. It is not quoted, for it may be a key all but one letter."""
    return _unauthorized(
        "Incorrect API key. Give a valid one in the header 'Authorization: Bearer KEY' or 'x-api-key: KEY'."
    )


def origin_not_allowed(origin: str) -> Refusal:
    """403 to a browser that asks for a page; it keeps the answer from the page."""
    message = (
        f"Web pages of the origin {_shortened(origin)} may not use this gateway: its operator must allow the origin "
        "(--cors-origin)."
    )
    return Refusal(403, message, code="origin_not_allowed")


def _unauthorized(message: str) -> Refusal:
    return Refusal(401, message, code="invalid_api_key", headers=[("www-authenticate", "Bearer")])


def model_not_allowed(key: str, name: str) -> Refusal:
    """403, whether the model exists or not: a key learns nothing of what it may not use."""
    message = f"The API key '{key}' may not use the model '{_shortened(name)}'. GET /v1/models lists those that it may."
    return Refusal(403, message, code="model_not_allowed", param="model")


def rate_limited(key: str, kind: str, most: int, seconds: float) -> Refusal:
    """429: the key has used up its `kind` (requests, tokens) of this minute; some are free again in `seconds`."""
    message = f"Rate limit reached for the API key '{key}': {most} {kind} per minute. Try again in {seconds:.0f} s."
    return _rate_limited(message, kind, seconds)


def request_beyond_limit(key: str, tokens: int, most: int) -> Refusal:
    """429: the request alone is more than a minute's tokens, so that no waiting helps."""
    message = (
        f"The request is too large for the API key '{key}': it may take some {tokens} tokens (of its text and "
        f"max_tokens), and the limit is {most} per minute. Send a shorter one, or a smaller max_tokens."
    )
    return Refusal(429, message, code="rate_limit_exceeded", kind="tokens")


def too_many_streams(key: str, most: int) -> Refusal:
    """429: as many requests of the key are under way as may be."""
    message = f"No more than {most} requests of the API key '{key}' may be under way at once. Wait for one to end."
    return _rate_limited(message, "requests", 1.0)


def _rate_limited(message: str, kind: str, seconds: float) -> Refusal:
    headers = [("retry-after", str(max(1, math.ceil(seconds))))]
    return Refusal(429, message, code="rate_limit_exceeded", kind=kind, headers=headers)


def crowded_out(name: str) -> Refusal:
    """503: as many wait for the model as its replicas can be expected to answer, and this key has the most of them."""
    message = (
        f"The model '{name}' is overloaded, and more requests of this API key wait for it than of any other. "
        "Try again in some seconds."
    )
    return _unavailable(message, "overloaded")


def body_too_large(limit: int, option: str) -> Refusal:
    """413 that names what sets the limit, if anything does; the connection is closed, for the rest of the body may
    still be on its way.
    """
    told = f"{limit} bytes, {option}" if option else f"{limit} bytes"
    message = f"The request body is larger than this gateway allows for its path ({told}). Send a smaller request."
    return Refusal(413, message, code="body_too_large", headers=[("connection", "close")])


def body_stalled(seconds: float) -> Refusal:
    """408: the body stopped arriving."""
    return _too_slow(f"Nothing more of the request body arrived for {seconds:g} s.")


def body_too_slow(rate: int) -> Refusal:
    """408: the body goes on arriving, and would for too long."""
    return _too_slow(f"The request body arrives at less than {rate} bytes per second. Send it faster.")


def head_too_slow(seconds: float) -> Refusal:
    """408: a request began, and its headers did not end."""
    return _too_slow(f"The headers of the request did not end within {seconds:g} s.")


def head_too_large(limit: int) -> Refusal:
    """431: a request has more headers than it may, or larger ones."""
    message = f"The request has more headers than this gateway allows: {limit} bytes in all."
    return Refusal(431, message, code="headers_too_large", headers=[("connection", "close")])


def _too_slow(message: str) -> Refusal:
    return Refusal(408, message, code="request_timeout", headers=[("connection", "close")])


def wrong_host(hosts: int) -> Refusal:
    """400: two hosts are a way to make a proxy and its server see two requests (RFC 9112 section 3.2)."""
    message = f"The request has {hosts} Host headers. Send one."
    return Refusal(400, message, code="invalid_request", headers=[("connection", "close")])


def too_many_questions(most: int) -> Refusal:
    """503: as many wait for news of the demand as may."""
    return _unavailable(f"{most} requests wait for news of the demand already, and no more may.", "overloaded")


def unknown_path(path: str) -> Refusal:
    """404 for a URL that this gateway does not serve, with what it would be where that is known."""
    if (what := not_offered(path)) is not None:
        return Refusal(404, f"{what}: not offered here ({_shortened(path)}).", code="not_offered")
    return Refusal(404, f"Unknown path {_shortened(path)}. The OpenAI API is served under /v1.", code="unknown_path")


def wrong_method(method: str, path: str, allowed: str) -> Refusal:
    """405, naming the method that works."""
    message = f"{method} is not allowed for {path}. Use {allowed}."
    return Refusal(405, message, code="method_not_allowed", headers=[("allow", allowed)])


def unknown_model(name: str, known: Sequence[str]) -> Refusal:
    """404 with the names that would work, and the one that is most like it."""
    message = f"The model '{_shortened(name)}' does not exist. {_listed(known)}{_did_you_mean(name, known)}"
    return Refusal(404, message, code="model_not_found", param="model")


def response_not_found(response: str) -> Refusal:
    """404: no gateway has been told of an id like this."""
    return Refusal(404, f"Response with id '{_shortened(response)}' not found.", code="response_not_found")


def response_gone() -> Refusal:
    """404: it was kept by a replica that is not there any more, or does not have the model any more."""
    message = (
        "The response is not there any more: the replica that kept it is gone. Send the conversation in 'input', or "
        "ask again."
    )
    return Refusal(404, message, code="response_not_found")


def response_away() -> Refusal:
    """503: whoever kept it keeps it on a claim, and the replica that takes its place is not there yet."""
    message = "The replica that keeps this response is being replaced. Try again in some seconds."
    return _unavailable(message, "model_not_ready")


def files_away(claim: str) -> Refusal:
    """503: no replica that has mounted the claim is ready."""
    message = f"No replica that keeps files on the claim {claim} is ready. Try again in some seconds."
    return _unavailable(message, "model_not_ready")


def files_not_shared() -> Refusal:
    """501: no model that the client may use keeps files."""
    message = (
        "This gateway has no files and batches for you: its operator must give a model that you may use a shared claim "
        "for them (spec.files.claim of a ModelDeployment, or of the RuntimePool that it is in), or name with "
        "--files-model whose replicas keep them in a folder that they share (plimsoll serve --files-dir "
        "--files-shared)."
    )
    return Refusal(501, message, code="files_not_shared", headers=[("x-should-retry", "false")])


def batch_not_allowed(key: str) -> Refusal:
    """403: nothing that a batch could be held to."""
    message = (
        f"The API key '{key}' makes no batches: of its limits nothing is set aside for them (batchShare in its file), "
        "or its list of models is too long."
    )
    return Refusal(403, message, code="batch_not_allowed")


def not_believed() -> Refusal:
    """503: a replica that does not know whose a response is must not tell it."""
    return _unavailable(
        "The replica that keeps the response does not know this gateway's credential, and so not whose it is; its "
        "operator must set it.",
        "gateway_not_believed",
    )


def _shortened(name: str) -> str:
    return name if len(name) <= 200 else name[:200] + "..."


def _listed(known: Sequence[str]) -> str:
    if not known:
        return "There are no models here yet."
    more = f" and {len(known) - MOST_NAMES_LISTED} more (GET /v1/models)" if len(known) > MOST_NAMES_LISTED else ""
    return f"Known models: {', '.join(known[:MOST_NAMES_LISTED])}{more}."


def _did_you_mean(name: str, known: Sequence[str]) -> str:
    """` Did you mean 'chat'?` where a known name is like this one; comparing takes time that grows with both."""
    by_lower = {one.lower(): one for one in known[:MOST_NAMES_COMPARED]}
    found = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.7) if len(name) <= LONGEST_NAME_COMPARED else []
    return f" Did you mean '{by_lower[found[0]]}'?" if found else ""


def not_ready(name: str, model: Model) -> Refusal:
    """503: the model exists, and no replica can answer now, nor came while the request could wait."""
    why = f": {model.message}" if model.message else f" (0 of {len(model.replicas)} replicas are ready)."
    return _unavailable(f"The model '{name}' is not ready yet{why}", "model_not_ready")


def overloaded(name: str, most: int, bound: str = "--max-waiting") -> Refusal:
    """503: as many requests as may wait for the model's answers do."""
    message = (
        f"The model '{name}' is overloaded: {most} requests wait for its answers here, and no more may "
        f"({bound}). Try again in some seconds."
    )
    return _unavailable(message, "overloaded")


def too_many_bytes(most: int) -> Refusal:
    """503: the bodies of all requests fill what is set aside for them; the connection is closed as with 413."""
    message = (
        f"The gateway is overloaded: the requests that it holds fill the {most} bytes set aside for them "
        "(--max-held-bytes). Try again in some seconds."
    )
    return _unavailable(message, "overloaded", ("connection", "close"))


def too_many_connections(most: int) -> Refusal:
    """503; the connection is closed."""
    message = f"The gateway is overloaded: it has {most} connections, and no more may be (--max-connections)."
    return _unavailable(message, "overloaded", ("connection", "close"))


def no_table() -> Refusal:
    """503: this gateway has only just begun."""
    return _unavailable("The gateway does not know its models yet. Try again in a moment.", "gateway_starting")


def _unavailable(message: str, code: str, *headers: tuple[str, str]) -> Refusal:
    return Refusal(UNAVAILABLE, message, code=code, headers=[("retry-after", str(RETRY_AFTER_SECONDS)), *headers])


def told_by_replica(name: str, status: int, body: bytes) -> Refusal:
    """What a replica answered instead of a stream whose head is out already: its own error, where it is one."""
    error = _told(body)
    if error is None:
        return upstream_failed(name, f"its answer was no stream (status {status})")
    status = UNAVAILABLE if status == ANTHROPIC_OVERLOADED else status
    return Refusal(status, error.message, code=error.code_told or "upstream_failed", param=error.param, kind=error.type)


def code_of(body: bytes) -> str | None:
    """The code of a replica's error; None where it has none, or is no error in OpenAI's shape or Anthropic's."""
    error = _told(body)
    return None if error is None else error.code_told


class _Details(msgspec.Struct):
    error_code: str | None = None


class _Error(msgspec.Struct):
    """OpenAI's, with `code`; or Anthropic's, with `details`."""

    message: str
    type: str | None = None
    code: str | None = None
    param: str | None = None
    details: _Details | None = None

    @property
    def code_told(self) -> str | None:
        return self.code if self.details is None else self.details.error_code


class _Told(msgspec.Struct):
    error: _Error


def _told(body: bytes) -> _Error | None:
    """The error that a replica's answer is; None where it is none that we know."""
    try:
        return msgspec.json.decode(body, type=_Told).error
    except UNREADABLE:
        return None


def upstream_failed(name: str, reason: str) -> Refusal:
    """502: replicas are there and could not be reached, or went away before they answered."""
    return Refusal(502, f"No replica of the model '{name}' answered: {reason}.", code="upstream_failed")


def stream_broken(name: str, reason: str) -> Refusal:
    """The end of a stream whose replica went away in the middle."""
    message = f"The answer of the model '{name}' ended early: {reason}. What came before it is incomplete."
    return Refusal(502, message, code="stream_broken")


def shutting_down() -> Refusal:
    """The end of a stream that outlived this gateway's grace period."""
    message = "The gateway is shutting down and this answer took longer than its grace period. Send it again."
    return _unavailable(message, "gateway_stopping")


def internal_error() -> Refusal:
    """500: a fault of ours; the log has the traceback."""
    return Refusal(500, "The gateway failed while it handled this request. Its log says why.", code="internal_error")
