"""The door to hosts: the requests of the host API that the operator makes, its errors in our words."""

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
"""How long a host may hold a question for news: numbers that are no news are then as old as this at most."""
ANSWER_SECONDS = 10.0
"""For a report. A change has no longer than a write to the API server, as whoever loses the Lease may not be late."""
UNLIMITED = 0


class HostError(Exception):
    """A host did not do what it was asked. `code` is its HTTP status, None when it could not be reached."""

    def __init__(self, code: int | None, message: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def is_refusal(self) -> bool:
        """Whether the same request would be refused again until somebody changes something."""
        return self.code in (400, 403, 409, 413, 507)


class _ErrorBody(msgspec.Struct, frozen=True):
    message: str = ""


class _ErrorAnswer(msgspec.Struct, frozen=True):
    error: _ErrorBody


def host_url(address: str) -> str:
    """Where the host API of a pod with this address is."""
    return url_of(address, HOST_PORT)


def host_session() -> aiohttp.ClientSession:
    """For the clients of all hosts. Each of those holds a question open: any limit would leave none for requests."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=UNLIMITED))


class HostClient:
    """One host. Every method raises HostError; `report` raises BadReportError, too."""

    def __init__(
        self, session: aiohttp.ClientSession, url: str, token: str, writes_under_way: WritesUnderWay | None = None
    ) -> None:
        """`writes_under_way` gets to know of each change while it is under way."""
        self._session = session
        self._writes_under_way = writes_under_way or WritesUnderWay(WRITE_SECONDS)
        self._url = url
        self._headers = {"Authorization": f"Bearer {token}"}

    async def report(self, after: int, wait: float = WAIT_SECONDS) -> Report:
        """The report, once its sequence is beyond `after` or `wait` seconds have passed."""
        path = f"/host/v1/report?after={after}&wait={wait:g}"
        _, data = await self._ask("GET", path, None, wait + ANSWER_SECONDS)
        return decode_report(data)

    async def place(self, model: ObjectKey, operation: str, spec: Mapping[str, Any], level: str) -> bool:
        """Place a model and bring it to a level; whether that is done, or goes on."""
        return await self._change("PUT", model, "", {"operation": operation, "spec": spec, "level": level})

    async def remove(self, model: ObjectKey, operation: str) -> bool:
        """Drain, unload and forget a model. One that is not there is removed."""
        try:
            return await self._change("DELETE", model, "", {"operation": operation})
        except HostError as error:
            if error.code == 404:
                return True
            raise

    async def wake(self, model: ObjectKey, operation: str) -> bool:
        """Bring a model to device memory."""
        return await self._change("POST", model, "/wake", {"operation": operation})

    async def sleep(self, model: ObjectKey, operation: str, level: str) -> bool:
        """Take a model out of device memory."""
        return await self._change("POST", model, "/sleep", {"operation": operation, "level": level})

    async def pin(self, model: ObjectKey, operation: str, *, pinned: bool, weight: float, priority: int) -> bool:
        """Say how much a model is worth."""
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
            raise HostError(None, f"it cannot be reached: {error or type(error).__name__}") from error
        if response.status not in (200, 202):
            raise HostError(response.status, _message(response.status, data))
        return response.status, data


def _message(status: int, data: bytes) -> str:
    try:
        words = msgspec.json.decode(data, type=_ErrorAnswer).error.message
    except UNREADABLE:
        words = data[:200].decode("utf-8", "replace")
    return f"it answered {status}: {words[:1000]}"
