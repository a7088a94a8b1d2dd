"""Headers that the gateway forwards: all except hop-by-hop headers, its API keys, and those that gateway or runtime set
themselves.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

import msgspec

from plimsoll_telemetry.trace_context import TRACEPARENT, TRACESTATE, TraceContext

RawHeaders = Sequence[tuple[bytes, bytes]]

# RFC 9110 section 7.6.1, with older names that are still in use.
HOP_BY_HOP = frozenset(
    [
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    ]
)
# Set again for the upstream connection, or already handled.
REQUEST_ONLY = frozenset([b"host", b"content-length", b"expect", b"x-request-id"])
# Between gateway and runtime (tests/contract): the tenant of a request and the gateway's credential; in responses,
# whether the credential was accepted and the replica's load; also the replica's place (response affinity) and the
# limits of a batch (keys/batch_limits). Clients can neither send nor see them.
TENANT = b"x-plimsoll-tenant"
CREDENTIAL = b"x-plimsoll-gateway"
LOAD = b"x-plimsoll-load"
PLACE = b"x-plimsoll-place"
BELIEVED = b"believed"
BATCH = b"x-plimsoll-batch"
PRIVATE = frozenset([TENANT, CREDENTIAL, LOAD, PLACE, BATCH])
# The gateway's keys are not forwarded.
KEY = frozenset([b"authorization", b"x-api-key"])
PARENT, STATE = TRACEPARENT.encode(), TRACESTATE.encode()
# To the client, the gateway is the server, and decides which web pages may read responses (cors). The length stays,
# since the body is not changed.
RESPONSE_ONLY = frozenset(
    [
        b"date",
        b"server",
        b"access-control-allow-origin",
        b"access-control-allow-credentials",
        b"access-control-expose-headers",
    ]
)

_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
"""Bytes that no header value may contain. A server that finds one has begun its response, and cannot report an
error.
"""
_REQUEST = HOP_BY_HOP | REQUEST_ONLY | PRIVATE
_DROPPED = {
    (False, False): _REQUEST,
    (False, True): _REQUEST | {PARENT, STATE},
    (True, False): _REQUEST | KEY,
    (True, True): _REQUEST | KEY | {PARENT, STATE},
}
"""Headers of a request that are not forwarded, by whether it has a voucher and whether it has a span."""
_RESPONSE = HOP_BY_HOP | RESPONSE_ONLY | PRIVATE


class Voucher(msgspec.Struct, frozen=True):
    """The tenant of a request, and the credential that proves it to the runtime; None without one."""

    tenant: str
    credential: str | None


# The format that the runtime accepts too (tests/contract), so that both logs have the same id.
REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_NEW_IDS = random.Random()  # ids must differ, but are not secret


def request_headers(
    headers: RawHeaders, request_id: str, voucher: Voucher | None = None, span: TraceContext | None = None
) -> list[tuple[bytes, bytes]]:
    """Return the headers to send to the replica, from the client's (whose names are lower case in ASGI).

    With a voucher, the client's API key is removed, and tenant and credential are added if there is a credential. With
    a span, the headers of the trace name that one; without, the client's are sent on.
    """
    sent, _ = _without(headers, _DROPPED[voucher is not None, span is not None])
    if span is not None:
        sent.append((PARENT, span.traceparent.encode()))
        if span.state:
            sent.append((STATE, span.state.encode()))
    sent.append((b"x-request-id", request_id.encode("ascii")))
    if voucher is not None and voucher.credential is not None:
        sent.append((TENANT, voucher.tenant.encode("ascii")))
        sent.append((CREDENTIAL, voucher.credential.encode("ascii")))
    return sent


def response_headers(headers: RawHeaders, request_id: str) -> list[tuple[bytes, bytes]]:
    """Return the headers to send to the client, with the request's id if the upstream set none; names are lower
    case.
    """
    kept, names = _without([field for field in headers if not _CONTROL.search(field[1])], _RESPONSE)
    if b"x-request-id" not in names:
        kept.append((b"x-request-id", request_id.encode("ascii")))
    return kept


def _without(headers: RawHeaders, dropped: frozenset[bytes]) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
    """Return the headers except `dropped` and those named in Connection, and the names of the returned ones."""
    kept, names, named = [], [], None
    for field in headers:
        name = field[0]
        if name not in dropped:
            kept.append(field)
            names.append(name)
        elif name == b"connection":
            named = (named or set()) | {token.strip().lower() for token in field[1].split(b",")}
    if named:
        kept = [field for field in kept if field[0] not in named]
        names = [name for name, _ in kept]
    return kept, names


def request_id(given: bytes | None) -> str:
    """Return the client's id if it is short and plain (letters, digits, `.`, `_`, `-`), else a new one."""
    if given is not None and REQUEST_ID.fullmatch(given):
        return given.decode("ascii")
    return f"{_NEW_IDS.getrandbits(128):032x}"
