"""The client of the host API: its requests and errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec

from plimsoll_cluster.decode_errors import UNREADABLE
from plimsoll_cluster.pod_status import url_of
from plimsoll_operator.kube.api import WRITE_SECONDS, WritesUnderWay
from plimsoll_operator.kube.polling import TooLargeError, read_bounded
from plimsoll_operator.pools.hosts.report import LIMIT, Report, decode_report
from plimsoll_operator.spec.identity import HOST_PORT, ObjectKey

WAIT_SECONDS = 10.0
"""How long a host may delay a response without news, and so the highest age of the numbers."""
ANSWER_SECONDS = 10.0
"""Time limit of a report. Changes have the time limit of writes to the API server, on which leader election relies."""
UNLIMITED = 0


class HostError(Exception):
    """A request to a host failed. `code` is its HTTP status, None if it was not reachable."""

    def __init__(self, code: int | None, message: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def is_refusal(self) -> bool:
        """Whether the same request would be rejected again until something changes."""
        return self.code in (400, 403, 409, 413, 507)


class _ErrorBody(msgspec.Struct, frozen=True):
    message: str = ""


class _ErrorAnswer(msgspec.Struct, frozen=True):
    error: _ErrorBody


def host_url(address: str) -> str:
    """Return the URL of the host API of a pod with this address."""
    return url_of(address, HOST_PORT)


def host_session() -> aiohttp.ClientSession:
    """Return a session for the clients of all hosts. Each keeps a request open, so the number of connections is not
    limited.
    """
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=UNLIMITED))


class HostClient:
    """The client of one host. A method that changes something returns whether the change is done; if not, it continues
    on the host. Every method raises HostError; `report` also raises BadReportError.
    """

    def __init__(
        self, session: aiohttp.ClientSession, url: str, token: str, writes_under_way: WritesUnderWay | None = None
    ) -> None:
        """Send requests to `url`. `writes_under_way` holds each change while it runs."""
        self._session = session
        self._writes_under_way = writes_under_way or WritesUnderWay(WRITE_SECONDS)
        self._url = url
        self._headers = {"Authorization": f"Bearer {token}"}

    async def report(self, after: int, wait: float = WAIT_SECONDS) -> Report:
        """Long-poll: return the report once its sequence exceeds `after`, or after `wait` seconds."""
        path = f"/host/v1/report?after={after}&wait={wait:g}"
        _, data = await self._ask("GET", path, None, wait + ANSWER_SECONDS)
        return decode_report(data)

    async def place(self, model: ObjectKey, operation: str, spec: Mapping[str, Any], level: str) -> bool:
        """Place a model and bring it to a level."""
        return await self._change("PUT", model, "", {"operation": operation, "spec": spec, "level": level})

    async def remove(self, model: ObjectKey, operation: str) -> bool:
        """Drain and unload a model, and remove it from the host. A model that the host does not have counts as done."""
        try:
            return await self._change("DELETE", model, "", {"operation": operation})
        except HostError as error:
            if error.code == 404:
                return True
            raise

    async def wake(self, model: ObjectKey, operation: str) -> bool:
        """Wake a model that sleeps on the host."""
        return await self._change("POST", model, "/wake", {"operation": operation})

    async def sleep(self, model: ObjectKey, operation: str, level: str) -> bool:
        """Put a model to sleep at a level, InHost or OnDisk."""
        return await self._change("POST", model, "/sleep", {"operation": operation, "level": level})

    async def pin(self, model: ObjectKey, operation: str, *, pinned: bool, weight: float, priority: int) -> bool:
        """Set a model's priority, weight and pin."""
        body = {"operation": operation, "pinned": pinned, "weight": weight, "priority": priority}
        return await self._change("POST", model, "/pin", body)

    async def _change(self, method: str, model: ObjectKey, verb: str, body: Mapping[str, Any]) -> bool:
        path = f"/host/v1/models/{quote(model.namespace, safe='')}/{quote(model.name, safe='')}{verb}"
        status, _ = await self._writes_under_way.see_through(self._ask(method, path, body, WRITE_SECONDS))
        return status == 200

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None, seconds: float) -> tuple[int, bytes]:
        try:
            async with self._session.request(
                method,
                self._url + path,
                json=body,
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(total=seconds),
                allow_redirects=False,
            ) as response:
                data = await read_bounded(response, LIMIT)
        except TooLargeError as error:
            raise HostError(response.status, str(error)) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise HostError(None, f"it is not reachable: {error or type(error).__name__}") from error
        if response.status not in (200, 202):
            raise HostError(response.status, _message(response.status, data))
        return response.status, data


def _message(status: int, data: bytes) -> str:
    try:
        words = msgspec.json.decode(data, type=_ErrorAnswer).error.message
    except UNREADABLE:
        words = data[:200].decode("utf-8", "replace")
    return f"it returned {status}: {words[:1000]}"
