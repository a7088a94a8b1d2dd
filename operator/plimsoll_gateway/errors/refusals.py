"""The gateway's error responses; in OpenAI's format unless the path has another dialect (`dialects`)."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from difflib import get_close_matches

import msgspec

from plimsoll_cluster.decode_errors import UNREADABLE
from plimsoll_gateway.discovery.routing_table import Model
from plimsoll_gateway.errors.unsupported_paths import not_offered

# An error that lists every model of a large cluster would be useless.
MOST_NAMES_LISTED = 50
MOST_NAMES_COMPARED = 200
LONGEST_NAME_COMPARED = 128
RETRY_AFTER_SECONDS = 5
UNAVAILABLE = 503
ANTHROPIC_OVERLOADED = 529
"""Sent to Anthropic's clients in place of 503."""


class Refusal(Exception):
    """A response with an error status. `headers` are added to it."""

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
        """`kind`: OpenAI's `type`, if it does not follow from the status."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.headers = tuple(headers)
        self.kind = kind or ("invalid_request_error" if status < 500 else "server_error")

    @property
    def body(self) -> bytes:
        """The error as JSON (pure ASCII, so that any text of a client can be quoted)."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return json.dumps({"error": error}).encode("ascii")


def bad_request(message: str, *, param: str | None = None, code: str = "invalid_request") -> Refusal:
    """400: the body is invalid."""
    return Refusal(400, message, code=code, param=param)


def missing_key() -> Refusal:
    """401: the request has no API key."""
    return _unauthorized("Missing API key. Give yours in the header 'Authorization: Bearer KEY' or 'x-api-key: KEY'.")


def wrong_key() -> Refusal:
    """401: the API key is unknown. It is not quoted, since it may differ from a valid key in one letter."""
    return _unauthorized(
        "Incorrect API key. Give a valid one in the header 'Authorization: Bearer KEY' or 'x-api-key: KEY'."
    )


def origin_not_allowed(origin: str) -> Refusal:
    """403 for a preflight of an origin that is not allowed. The browser hides the response from the page."""
    message = (
        f"Web pages of the origin {_shortened(origin)} may not use this gateway: its operator must allow the origin "
        "(--cors-origin)."
    )
    return Refusal(403, message, code="origin_not_allowed")


def _unauthorized(message: str) -> Refusal:
    return Refusal(401, message, code="invalid_api_key", headers=[("www-authenticate", "Bearer")])


def model_not_allowed(key: str, name: str) -> Refusal:
    """403, whether the model exists or not: a key gets no information about models that it may not use."""
    message = f"The API key '{key}' may not use the model '{_shortened(name)}'. GET /v1/models lists the ones it may."
    return Refusal(403, message, code="model_not_allowed", param="model")


def rate_limited(key: str, kind: str, most: int, seconds: float) -> Refusal:
    """429: the key has used its `kind` (requests, tokens) of this minute; some are free again in `seconds`."""
    message = f"Rate limit reached for the API key '{key}': {most} {kind} per minute. Try again in {seconds:.0f} s."
    return _rate_limited(message, kind, seconds)


def request_beyond_limit(key: str, tokens: int, most: int) -> Refusal:
    """429: the request alone exceeds the tokens of a minute, so that retries do not help."""
    message = (
        f"The request is too large for the API key '{key}': its text and max_tokens are up to "
        f"{tokens} tokens, and the limit is {most} per minute. Shorten it, or lower max_tokens."
    )
    return Refusal(429, message, code="rate_limit_exceeded", kind="tokens")


def too_many_streams(key: str, most: int) -> Refusal:
    """429: the key has the most concurrent requests."""
    message = f"The API key '{key}' has reached its limit of {most} concurrent requests. Wait for one to end."
    return _rate_limited(message, "requests", 1.0)


def _rate_limited(message: str, kind: str, seconds: float) -> Refusal:
    headers = [("retry-after", str(max(1, math.ceil(seconds))))]
    return Refusal(429, message, code="rate_limit_exceeded", kind=kind, headers=headers)


def crowded_out(name: str) -> Refusal:
    """503: the model's queue is full, and the request's key has the highest cost per weight in the lowest priority."""
    message = (
        f"The model '{name}' is overloaded, and this API key has the most requests waiting for it. "
        "Try again in some seconds."
    )
    return _unavailable(message, "overloaded")


def body_too_large(limit: int, option: str) -> Refusal:
    """413, with the option that sets the limit, if any. The connection is closed, since the rest of the body may
    still arrive.
    """
    told = f"{limit} bytes, {option}" if option else f"{limit} bytes"
    message = f"The request body is larger than this gateway allows for its path ({told}). Send a smaller request."
    return Refusal(413, message, code="body_too_large", headers=[("connection", "close")])


def body_stalled(seconds: float) -> Refusal:
    """408: the body stopped arriving."""
    return _too_slow(f"The request body stopped: no data arrived for {seconds:g} s.")


def body_too_slow(rate: int) -> Refusal:
    """408: the body arrives too slowly."""
    return _too_slow(f"The request body arrives at less than {rate} bytes per second. Send it faster.")


def head_too_slow(seconds: float) -> Refusal:
    """408: the headers did not end in time."""
    return _too_slow(f"The headers of the request did not end within {seconds:g} s.")


def head_too_large(limit: int) -> Refusal:
    """431: the headers are too many or too large."""
    message = f"The request has more headers than this gateway allows: {limit} bytes in all."
    return Refusal(431, message, code="headers_too_large", headers=[("connection", "close")])


def _too_slow(message: str) -> Refusal:
    return Refusal(408, message, code="request_timeout", headers=[("connection", "close")])


def wrong_host(hosts: int) -> Refusal:
    """400: the request has no Host header, or several: two can make a proxy and its server read different requests (RFC
    9112 section 3.2).
    """
    message = f"The request has {hosts} Host headers. Send one."
    return Refusal(400, message, code="invalid_request", headers=[("connection", "close")])


def too_many_questions(most: int) -> Refusal:
    """503: the most requests already wait for changes of the demand."""
    return _unavailable(f"{most} requests already wait for changes of the demand, which is the limit.", "overloaded")


def unknown_path(path: str) -> Refusal:
    """404 for an unknown path, with the name of the API that has it, if known."""
    if (what := not_offered(path)) is not None:
        return Refusal(404, f"{what}: not offered by this gateway ({_shortened(path)}).", code="not_offered")
    return Refusal(404, f"Unknown path {_shortened(path)}. The OpenAI API is served under /v1.", code="unknown_path")


def wrong_method(method: str, path: str, allowed: str) -> Refusal:
    """405, with the allowed methods."""
    message = f"{method} is not allowed for {path}. Use {allowed}."
    return Refusal(405, message, code="method_not_allowed", headers=[("allow", allowed)])


def unknown_model(name: str, known: Sequence[str]) -> Refusal:
    """404 with the known models and the most similar name."""
    message = f"The model '{_shortened(name)}' does not exist. {_listed(known)}{_did_you_mean(name, known)}"
    return Refusal(404, message, code="model_not_found", param="model")


def response_not_found(response: str) -> Refusal:
    """404: the response id has an invalid format, or its runtime was called without a gateway."""
    return Refusal(404, f"Response with id '{_shortened(response)}' not found.", code="response_not_found")


def response_gone() -> Refusal:
    """404: the replica that stored the response is gone, or no longer has the response's model."""
    message = (
        "The replica that stored this response is gone, and the response with it. Send the conversation in 'input', "
        "or send the request again."
    )
    return Refusal(404, message, code="response_not_found")


def response_away() -> Refusal:
    """503: the response is stored on a claim, and the replacement of its replica is not ready."""
    message = "The replica that keeps this response is being replaced. Try again in some seconds."
    return _unavailable(message, "model_not_ready")


def files_away(claim: str) -> Refusal:
    """503: no replica that mounts the claim is ready."""
    message = f"No replica that keeps files on the claim {claim} is ready. Try again in some seconds."
    return _unavailable(message, "model_not_ready")


def files_not_shared() -> Refusal:
    """501: no model that the client may use keeps files."""
    message = (
        "This gateway offers you no files and batches. Its operator must give a model that you may use a shared "
        "claim (spec.files.claim of the ModelDeployment or its RuntimePool), or set --files-model to a model whose "
        "replicas share a folder (plimsoll serve --files-dir --files-shared)."
    )
    return Refusal(501, message, code="files_not_shared", headers=[("x-should-retry", "false")])


def batch_not_allowed(key: str) -> Refusal:
    """403: the key's limits do not allow batches."""
    message = (
        f"The API key '{key}' may not create batches: its file has requestsPerMinute or tokensPerMinute but no "
        "batchShare or one that rounds to 0, or lists more models than fit in 8 KiB."
    )
    return Refusal(403, message, code="batch_not_allowed")


def not_believed() -> Refusal:
    """503: the replica did not accept the gateway's credential, so it cannot have checked who owns the stored data."""
    return _unavailable(
        "The replica that stores the response does not have this gateway's credential, so it cannot check the owner; "
        "its operator must set the credential.",
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
    """Return ` Did you mean 'chat'?` for the most similar known name, or an empty string. The compared names are
    limited.
    """
    by_lower = {one.lower(): one for one in known[:MOST_NAMES_COMPARED]}
    found = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.7) if len(name) <= LONGEST_NAME_COMPARED else []
    return f" Did you mean '{by_lower[found[0]]}'?" if found else ""


def not_ready(name: str, model: Model) -> Refusal:
    """503: the model exists, but no replica became ready while the request could wait."""
    why = f": {model.message}" if model.message else f" (0 of {len(model.replicas)} replicas are ready)."
    return _unavailable(f"The model '{name}' is not ready yet{why}", "model_not_ready")


def overloaded(name: str, most: int, bound: str = "--max-waiting") -> Refusal:
    """503: the most requests already wait for the model's responses."""
    message = (
        f"The model '{name}' is overloaded: {most} requests already wait for a response here, "
        f"which is the limit ({bound}). Try again in some seconds."
    )
    return _unavailable(message, "overloaded")


def too_many_bytes(most: int) -> Refusal:
    """503: held request bodies fill their limit; the connection is closed as with 413."""
    message = (
        f"The gateway is overloaded: the bodies of its requests fill the limit of {most} bytes "
        "(--max-held-bytes). Try again in some seconds."
    )
    return _unavailable(message, "overloaded", ("connection", "close"))


def too_many_connections(most: int) -> Refusal:
    """503: too many connections; the connection is closed."""
    message = f"The gateway is overloaded: it has reached its limit of {most} connections (--max-connections)."
    return _unavailable(message, "overloaded", ("connection", "close"))


def no_table() -> Refusal:
    """503: the gateway has just started."""
    return _unavailable("The gateway has not loaded its models yet. Try again in a moment.", "gateway_starting")


def _unavailable(message: str, code: str, *headers: tuple[str, str]) -> Refusal:
    return Refusal(UNAVAILABLE, message, code=code, headers=[("retry-after", str(RETRY_AFTER_SECONDS)), *headers])


def told_by_replica(name: str, status: int, body: bytes) -> Refusal:
    """Return the error for a stream that has begun, if the replica sent something other than a stream: the error in its
    `body`, or else a 502.
    """
    error = _told(body)
    if error is None:
        return upstream_failed(name, f"it sent no stream (status {status})")
    status = UNAVAILABLE if status == ANTHROPIC_OVERLOADED else status
    return Refusal(status, error.message, code=error.code_told or "upstream_failed", param=error.param, kind=error.type)


def code_of(body: bytes) -> str | None:
    """Return the code of a replica's error; None if it has none, or if it is not in OpenAI's or Anthropic's format."""
    error = _told(body)
    return None if error is None else error.code_told


class _Details(msgspec.Struct):
    error_code: str | None = None


class _Error(msgspec.Struct):
    """An error of OpenAI's API, with `code`, or of Anthropic's, with `details`."""

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
    """Return the error in a replica's response, or None."""
    try:
        return msgspec.json.decode(body, type=_Told).error
    except UNREADABLE:
        return None


def upstream_failed(name: str, reason: str) -> Refusal:
    """502: the replicas could not be reached, disconnected before they answered, or sent an invalid response."""
    return Refusal(502, f"No replica of the model '{name}' answered: {reason}.", code="upstream_failed")


def stream_broken(name: str, reason: str) -> Refusal:
    """The last event of a stream whose replica disconnected."""
    message = f"The answer of the model '{name}' ended early: {reason}. What came before it is incomplete."
    return Refusal(502, message, code="stream_broken")


def shutting_down() -> Refusal:
    """503, or the last event of a stream: the request outlived the gateway's grace period."""
    message = "The gateway is shutting down and this answer took longer than its grace period. Send it again."
    return _unavailable(message, "gateway_stopping")


def internal_error() -> Refusal:
    """500: an error of the gateway; the log has the traceback."""
    return Refusal(500, "The gateway failed to handle this request. Its log has the reason.", code="internal_error")
