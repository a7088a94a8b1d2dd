"""HTTP requests to the API server at little cost.

The kubernetes client library supplies addresses, certificates and tokens. Its `call_api` is not used: it copies each
body in Python and lets aiohttp search the environment and files for proxies and passwords before each request, in
another thread. Together that costs as much as the rest of a request.
"""

from __future__ import annotations

from collections.abc import Mapping
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
"""The connection limit. Each watch occupies one connection, so any limit would leave none for requests if there are
many namespaces.
"""
BUFFER = 1 << 21
NOTHING: Mapping[str, str] = {}


class Connection:
    """Connections to one API server; a context manager that closes them."""

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

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
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
        """Send a request with a `body` of media type `kind`. The caller closes the response, also after an error
        status.

        `path` is sent as it is, without further quoting. `patience`: the request's time limits. Raises
        aiohttp.ClientError, TimeoutError and OSError.
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
        """Return a new session for a library that sends requests itself; the caller closes it.

        `middleware` sees each request. The current token, and the proxy and TLS server name of the kubeconfig, are
        added to each request.
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
        """Return the Authorization header with the current token. Tokens are renewed while the process runs."""
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
    """Neither a service account nor a usable kubeconfig was found; the message has the reason."""


async def connect() -> Connection:
    """Return a connection to the cluster of this pod, or else to the kubeconfig's. Raises NoClusterError."""
    try:
        config.load_incluster_config()  # type: ignore[no-untyped-call]
    except config.ConfigException:
        try:
            await config.load_kube_config()  # type: ignore[no-untyped-call]
        except config.ConfigException as error:
            raise NoClusterError(f"no cluster: this is not a pod, and no kubeconfig is usable ({error})") from error
    return Connection(client.Configuration.get_default_copy())
