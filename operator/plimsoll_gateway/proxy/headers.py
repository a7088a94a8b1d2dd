"""Which headers cross the gateway: all but those that belong to one connection."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

import msgspec

RawHeaders = Sequence[tuple[bytes, bytes]]

# RFC 9110 section 7.6.1, with the older names that are still seen.
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
# Made anew for the upstream connection, or already acted upon.
REQUEST_ONLY = frozenset([b"host", b"content-length", b"expect", b"x-request-id"])
# Between gateway and runtime (tests/contract): whose a request is, the proof that the gateway may say so, and in
# answers whether it was believed and how busy the replica is; what place the replica is at (places), and what a batch
# is held to (keys/batches). Clients can neither send these nor see them.
TENANT = b"x-plimsoll-tenant"
CREDENTIAL = b"x-plimsoll-gateway"
LOAD = b"x-plimsoll-load"
PLACE = b"x-plimsoll-place"
BELIEVED = b"believed"
BATCH = b"x-plimsoll-batch"
PRIVATE = frozenset([TENANT, CREDENTIAL, LOAD, PLACE, BATCH])
# The gateway's keys are for the gateway alone.
KEY = frozenset([b"authorization", b"x-api-key"])
# The gateway is the server that the client sees, and the one that says which web pages may read answers (cors). The
# length stays: the body is passed on as it is.
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
"""What no value may have. A server that finds it has begun its answer, and cannot tell of it any more."""
_REQUEST = HOP_BY_HOP | REQUEST_ONLY | PRIVATE
_KEYED_REQUEST = _REQUEST | KEY
_RESPONSE = HOP_BY_HOP | RESPONSE_ONLY | PRIVATE


class Voucher(msgspec.Struct, frozen=True):
    """Whose a request is, and the credential by which the runtime believes it; None where there is none."""

    tenant: str
    credential: str | None


# What the runtime takes over too (tests/contract): both logs then hold the same id.
REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_NEW_IDS = random.Random()  # they are to be different, and no secret


def request_headers(headers: RawHeaders, request_id: str, voucher: Voucher | None = None) -> list[tuple[bytes, bytes]]:
    """What to send upstream; names are lower case already (ASGI). With a voucher, without the client's key."""
    sent, _ = _without(headers, _REQUEST if voucher is None else _KEYED_REQUEST)
    sent.append((b"x-request-id", request_id.encode("ascii")))
    if voucher is not None and voucher.credential is not None:
        sent.append((TENANT, voucher.tenant.encode("ascii")))
        sent.append((CREDENTIAL, voucher.credential.encode("ascii")))
    return sent


def response_headers(headers: RawHeaders, request_id: str) -> list[tuple[bytes, bytes]]:
    """What to send to the client, with the request's id where the upstream has not set one; names are lower case."""
    kept, names = _without([field for field in headers if not _CONTROL.search(field[1])], _RESPONSE)
    if b"x-request-id" not in names:
        kept.append((b"x-request-id", request_id.encode("ascii")))
    return kept


def _without(headers: RawHeaders, dropped: frozenset[bytes]) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
    """Leave out `dropped` and whatever the Connection header names; what stays, and the names of that."""
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
    """The client's own id where it is short and plain (letters, digits, `.`, `_`, `-`), else a new one."""
    if given is not None and REQUEST_ID.fullmatch(given):
        return given.decode("ascii")
    return f"{_NEW_IDS.getrandbits(128):032x}"
