"""One request and its response."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from plimsoll_gateway.admission.body_memory import BodyMemory
from plimsoll_gateway.admission.limits import OTHER_BYTES
from plimsoll_gateway.discovery.routing_table import Model
from plimsoll_gateway.errors.refusals import wrong_method
from plimsoll_gateway.keys.api_key import ApiKey
from plimsoll_gateway.proxy.body import MOST_OPTION, Body, Message, Receive, read_body
from plimsoll_gateway.proxy.response_stream import ResponseStream
from plimsoll_gateway.telemetry.request_record import RequestRecord
from plimsoll_telemetry.log_subject import LogSubject

OTHER_ROUTE = "other"
"""The route of paths that the API does not have: a client's text is no label."""


class Exchange:
    """A request and its response while it is handled."""

    def __init__(
        self,
        scope: Message,
        path: str,
        headers: dict[bytes, bytes],
        receive: Receive,
        stream: ResponseStream,
        record: RequestRecord,
    ) -> None:
        """`path` is normalised (request_head), and `headers` have lower-case names."""
        self.scope: Any = scope
        self.headers = headers
        self.receive = receive
        self.stream = stream
        self.path = path
        self.record = record
        self.route = OTHER_ROUTE
        self.own = False  # a page or a probe of the gateway itself
        self.subject = LogSubject(stream.request_id, record.trace_id)
        self.model: Model | None = None
        self.key: ApiKey | None = None
        self.came = time.monotonic()
        self.body_taken = False  # the body is read elsewhere, which discards the rest after a refusal
        self.code: int | None = None  # status to count instead of the one that was sent

    def logged(self, model: Model) -> Model:
        """Name the model in the request's log lines from now on, and return it."""
        self.subject.model = str(model.key)
        return model

    async def read_body(self, limits: Mapping[str, int], memory: BodyMemory) -> Body:
        """Read the body with `read_body`. `limits` are by path."""
        self.body_taken = True
        limit = limits.get(self.path, OTHER_BYTES)
        option = MOST_OPTION if self.path in limits else ""
        body = await read_body(self.receive, self.headers, limit, memory, option=option)
        self.record.phases.end("read")
        return body

    def allow(self, *methods: str) -> None:
        """Raise Refusal 405 unless the request has one of these methods."""
        if self.scope["method"] not in methods:
            raise wrong_method(self.scope["method"], self.path, ", ".join(methods))
