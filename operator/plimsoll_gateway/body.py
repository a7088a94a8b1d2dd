"""The body of a request: read whole (a retry may need it again), bounded, and asked for its model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, NoReturn

from plimsoll_gateway.errors import Refusal, bad_request, body_too_large, body_too_slow

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]

IDLE_SECONDS = 60.0
# How much more than the limit is read and thrown away, so that a client which sends all before it listens sees the
# 413 rather than a broken pipe.
DISCARD_BYTES = 64 << 20
DISCARD_SECONDS = 5.0


class ClientGone(Exception):
    """The client hung up before its request was complete: nobody is left to answer."""


async def read_body(receive: Receive, headers: Mapping[bytes, bytes], limit: int) -> bytes:
    """The whole body, at most `limit` bytes.

    Raises Refusal (413, 408, 415) or ClientGone. `headers` have lower-case names.
    """
    if headers.get(b"content-encoding", b"identity").strip().lower() != b"identity":
        raise Refusal(415, "Compressed request bodies are not supported.", code="unsupported_encoding")
    declared = headers.get(b"content-length", b"")
    if declared.isdigit() and int(declared) > limit:
        if b"expect" not in headers:  # who waits for 100-continue has sent nothing yet
            await _discard(receive)
        raise body_too_large(limit)
    body, more = await _next(receive)
    if not more and len(body) <= limit:
        return body
    chunks = [body]
    size = len(body)
    while more:
        if size > limit:
            await _discard(receive)
            break
        body, more = await _next(receive)
        chunks.append(body)
        size += len(body)
    if size > limit:
        raise body_too_large(limit)
    return b"".join(chunks)


async def _next(receive: Receive) -> tuple[bytes, bool]:
    try:
        async with asyncio.timeout(IDLE_SECONDS):
            message = await receive()
    except TimeoutError:
        raise body_too_slow(IDLE_SECONDS) from None
    if message["type"] == "http.disconnect":
        raise ClientGone
    return message.get("body", b""), message.get("more_body", False)


async def _discard(receive: Receive) -> None:
    """Read on, within bounds, and keep nothing."""
    left = DISCARD_BYTES
    more = True
    try:
        async with asyncio.timeout(DISCARD_SECONDS):
            while more and left > 0:
                body, more = await _next(receive)
                left -= len(body)
    except TimeoutError:
        return


def model_name(body: bytes) -> str:
    """The `model` of a JSON request. Raises Refusal 400 that says what is wrong with the body.

    Stricter than JSON where two readers could disagree on which model is meant: each key of the request appears
    once, the text is UTF-8, and NaN is not a number.
    """
    members = _members(body)
    if not isinstance(members, tuple):
        raise bad_request("The request body must be a JSON object.")
    seen: dict[str, Any] = {}
    for key, value in members:
        if key in seen:
            raise bad_request(f"The key {json.dumps(key)} appears twice in the request body.", param=key)
        seen[key] = value
    if "model" not in seen:
        raise bad_request("The request names no model: 'model' is required.", param="model", code="missing_model")
    name = seen["model"]
    if not isinstance(name, str) or not name:
        raise bad_request("'model' must be a string that is not empty.", param="model", code="invalid_model")
    return name


def _members(body: bytes) -> Any:
    """Parse JSON; objects become tuples of their members, which keeps duplicates visible at no cost."""
    try:
        return json.loads(body.decode("utf-8"), object_pairs_hook=tuple, parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise bad_request(f"The request body is not UTF-8 (byte {error.start}).") from None
    except json.JSONDecodeError as error:
        raise bad_request(f"The request body is not valid JSON: {error}.") from None
    except RecursionError:
        raise bad_request("The request body is nested too deeply.") from None
    except ValueError as error:
        raise bad_request(f"The request body has a number that cannot be read: {error}.") from None


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")
