"""One request for a replica, and how it is sent."""

from __future__ import annotations

import asyncio
import re
from urllib.parse import quote

import msgspec

from plimsoll_gateway.admission.limits import BATCHES
from plimsoll_gateway.admission.quota.token_meter import Meter
from plimsoll_gateway.client.errors import UpstreamError
from plimsoll_gateway.client.pool import Pool
from plimsoll_gateway.client.response import Response
from plimsoll_gateway.discovery.routing_table import Replica
from plimsoll_gateway.errors.dialects import RESPONSES
from plimsoll_gateway.keys.api_key import ApiKey
from plimsoll_gateway.proxy.body import Body
from plimsoll_gateway.proxy.headers import BATCH, PLACE, RawHeaders, Voucher, request_headers
from plimsoll_gateway.proxy.upload import Upload
from plimsoll_gateway.routing.response_affinity import place_of
from plimsoll_gateway.routing.scorers import ANYTHING, RoutingHints
from plimsoll_gateway.telemetry.request_record import RequestRecord
from plimsoll_telemetry.trace_context import TraceContext

HEALTH_SECONDS = 5.0
_PLAIN = re.compile(r"[A-Za-z0-9/_.-]*")
"""Characters that need no quoting."""
MAKES_BATCH = ("POST", BATCHES)


class Call(msgspec.Struct, frozen=True):
    """A request for a replica, the same for each attempt.

    `came`: its arrival, by time.monotonic. `hints`: preferences for a replica. With keys, `key` is its API key,
    `voucher` proves its tenant, and `meter` counts its tokens. `place`: the place (response_affinity) of the only
    replica that can answer; empty if any can. `upload`: its streamed body in place of `body`. `record`: where its
    attempts are recorded.
    """

    path: str
    query: str
    headers: RawHeaders
    body: Body
    record: RequestRecord
    request_id: str
    model_name: str
    hints: RoutingHints = ANYTHING
    key: ApiKey | None = None
    voucher: Voucher | None = None
    meter: Meter | None = None
    came: float = 0.0
    method: str = "POST"
    place: str = ""
    upload: Upload | None = None


async def is_alive(pool: Pool, replica: Replica) -> bool:
    """Return whether the replica answers /health in time, with any status: one that loads or drains is alive."""
    try:
        async with asyncio.timeout(HEALTH_SECONDS):
            response = await pool.ask(replica.url, "GET", "/health")
    except (UpstreamError, TimeoutError):
        return False
    response.close()
    return True


async def send(pool: Pool, replica: Replica, call: Call, span: TraceContext | None = None) -> Response:
    """Send the call to one replica and wait for the response's headers. `span`: the parent of the replica's spans.

    Raises UpstreamError, and the errors of an upload. Closing the response cancels the request upstream.
    """
    path = call.path if _PLAIN.fullmatch(call.path) else quote(call.path)  # decoded, it may contain a line end
    target = f"{path}?{call.query}" if call.query else path
    fields = request_headers(call.headers, call.request_id, call.voucher, span)
    if call.path == RESPONSES:
        fields.append((PLACE, place_of(replica.keeps_as).encode()))
    if (call.method, call.path) == MAKES_BATCH and call.key is not None and call.key.batch is not None:
        fields.append((BATCH, call.key.batch.header(call.key.name)))
    upload = call.upload
    length = len(call.body) if upload is None else upload.declared
    if length is not None:
        fields.append((b"content-length", b"%d" % length))
    return await pool.ask(
        replica.url, call.method, target, fields, call.body.view if upload is None else upload.pieces()
    )
