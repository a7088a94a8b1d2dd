"""Requests to the API server, as cheap as they can be.

Addresses, certificates and tokens are the client library's. Its `call_api` is not used: it copies every body in Python,
and lets aiohttp look for proxies and passwords in the environment and in files before each request, in another thread.
Together that costs as much as the rest of a request.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode
from urllib.request import getproxies

import aiohttp
from kubernetes.aio import client, config
from kubernetes.aio.client.rest import RESTClientObject
from multidict import CIMultiDict
from yarl import URL

JSON = "application/json"
UNLIMITED = 0
"""Connections. A watch has one to itself, so with many namespaces any number would leave none for requests."""
BUFFER = 1 << 21
NOTHING: Mapping[str, str] = {}


class Connection:
    """One API server; a context that closes its connections."""

    def __init__(self, settings: client.Configuration) -> None:
        self._settings = settings
        self._host = settings.host.rstrip("/")
        self._session: aiohttp.ClientSession | None = None
        self._more: dict[str, Any] = {}
        if settings.proxy:
            self._more |= {"proxy": settings.proxy, "proxy_headers": settings.proxy_headers}
        if settings.tls_server_name:
            self._more["server_hostname"] = settings.tls_server_name

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End every connection."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] = NOTHING,
        body: bytes | None = None,
        *,
        kind: str = JSON,
        patience: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        """One request, `body` of the media type `kind`; the caller closes the answer, whatever its status.

        `path` is as it goes over the wire. Raises aiohttp.ClientError, TimeoutError and OSError.
        """
        url = URL(f"{self._host}{path}?{urlencode(query)}" if query else self._host + path, encoded=True)
        headers = {"Accept": JSON, **await self._authorization()}
        if body is not None:
            headers["Content-Type"] = kind
        return await self._sessions().request(method, url, headers=headers, data=body, timeout=patience, **self._more)

    @property
    def host(self) -> str:
        """The API server's URL."""
        return self._host

    def session(self, middleware: aiohttp.ClientMiddlewareType) -> aiohttp.ClientSession:
        """A session of the caller's own, for a library that makes requests itself. `middleware` sees each request.

        The newest token and what the kubeconfig says of proxies and names are added to each request.
        """

        async def add_settings(
            request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
        ) -> aiohttp.ClientResponse:
            request.headers.update(await self._authorization())
            if proxy := self._more.get("proxy"):
                request.proxy, request.proxy_headers = URL(proxy), CIMultiDict(self._more["proxy_headers"] or {})
            request.server_hostname = self._more.get("server_hostname")
            return await handler(request)

        return self._new_session(middleware, add_settings)

    async def _authorization(self) -> dict[str, str]:
        """Asked for each request: tokens are renewed while we run."""
        found = (await self._settings.auth_settings()).get("BearerToken")
        return {"Authorization": found["value"]} if found and found["value"] else {}

    def _sessions(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = self._new_session()
        return self._session

    def _new_session(self, *middlewares: aiohttp.ClientMiddlewareType) -> aiohttp.ClientSession:
        certificates = RESTClientObject(self._settings).ssl_context
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=UNLIMITED, ssl=certificates),
            middlewares=middlewares,
            read_bufsize=BUFFER,
            trust_env=bool(getproxies()),
        )


class NoClusterError(Exception):
    """There is no cluster to talk to; the message says what was looked for."""


async def connect() -> Connection:
    """To the cluster that this process runs in, else to the kubeconfig's. Raises NoClusterError."""
    try:
        config.load_incluster_config()  # type: ignore[no-untyped-call]
    except config.ConfigException:
        try:
            await config.load_kube_config()  # type: ignore[no-untyped-call]
        except config.ConfigException as error:
            raise NoClusterError(f"neither inside a pod nor with a usable kubeconfig ({error})") from error
    return Connection(client.Configuration.get_default_copy())
