"""The only door to the API server: the few requests that the operator makes, and its errors in our words.

Objects stay plain JSON: the client library's classes would drop fields that they do not know.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import aiohttp
from kubernetes.aio import client, config

from plimsoll_operator.identity import GROUP, PLURAL, VERSION, Object, ObjectKey, selector

FIELD_MANAGER = "plimsoll-operator"
TIMEOUT = aiohttp.ClientTimeout(total=30, sock_connect=10)
JSON, APPLY = "application/json", "application/apply-patch+yaml"
MODELS = f"/apis/{GROUP}/{VERSION}"


class ApiError(Exception):
    """The API server did not do what it was asked. `code` is its HTTP status, None when it could not be reached."""

    def __init__(self, code: int | None, message: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def is_refusal(self) -> bool:
        """Whether the same request would be refused again (not a conflict, a limit on requests or an outage)."""
        return self.code in (400, 403, 422)


class NoClusterError(Exception):
    """There is no cluster to talk to; the message says what was looked for."""


async def connect() -> client.ApiClient:
    """A client for the cluster that this process runs in, else for the kubeconfig's. Raises NoClusterError."""
    try:
        config.load_incluster_config()  # type: ignore[no-untyped-call]
    except config.ConfigException:
        try:
            await config.load_kube_config()  # type: ignore[no-untyped-call]
        except config.ConfigException as error:
            raise NoClusterError(f"neither inside a pod nor with a usable kubeconfig ({error})") from error
    return client.ApiClient()


class Api:
    """Requests for ModelDeployments and their children. Every method raises ApiError. `writes` counts changes."""

    def __init__(self, api: client.ApiClient) -> None:
        self._client = api
        self.writes = 0

    async def model(self, key: ObjectKey) -> Object | None:
        """A ModelDeployment, None when it is gone."""
        return await self._find(f"{MODELS}/namespaces/{key.namespace}/{PLURAL}/{key.name}")

    async def models(self, namespace: str | None) -> list[Object]:
        """All ModelDeployments of a namespace, or of the cluster."""
        scope = "" if namespace is None else f"/namespaces/{quote(namespace, safe='')}"
        return list((await self._ask("GET", f"{MODELS}{scope}/{PLURAL}"))["items"])

    async def pods(self, key: ObjectKey) -> list[Object]:
        """Pods that carry a ModelDeployment's labels."""
        query = {"labelSelector": selector(key.name)}
        return list((await self._ask("GET", f"/api/v1/namespaces/{key.namespace}/pods", query=query))["items"])

    async def service(self, key: ObjectKey) -> Object | None:
        """The Service of this name, whoever's it is."""
        return await self._find(f"/api/v1/namespaces/{key.namespace}/services/{key.name}")

    async def create_pod(self, pod: Object) -> None:
        """Create a pod; one that exists already is left as it is (409 is an ApiError)."""
        await self._write("POST", f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods", pod)

    async def delete_pod(self, key: ObjectKey, uid: str) -> None:
        """Delete the pod with this uid; nothing happens when it is gone or another one has its name."""
        path = f"/api/v1/namespaces/{key.namespace}/pods/{key.name}"
        try:
            await self._write("DELETE", path, {"preconditions": {"uid": uid}})
        except ApiError as error:
            if error.code not in (404, 409):
                raise

    async def apply_service(self, service: Object) -> None:
        """Server-side apply, ours with force: nobody else has a say in our Service's fields."""
        meta = service["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/services/{meta['name']}"
        await self._apply(path, service)

    async def apply_status(self, item: Object, status: Mapping[str, Any]) -> None:
        """Server-side apply of a ModelDeployment's whole status; nothing happens when the object is gone."""
        meta = item["metadata"]
        body = {
            "apiVersion": item["apiVersion"],
            "kind": item["kind"],
            "metadata": {"name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"]},
            "status": status,
        }
        try:
            await self._apply(f"{MODELS}/namespaces/{meta['namespace']}/{PLURAL}/{meta['name']}/status", body)
        except ApiError as error:
            if error.code not in (404, 409):
                raise

    async def create_event(self, event: Object) -> None:
        """Record an event."""
        await self._write("POST", f"/apis/events.k8s.io/v1/namespaces/{event['metadata']['namespace']}/events", event)

    async def lease(self, key: ObjectKey) -> Object | None:
        """A Lease, None when there is none."""
        return await self._find(f"/apis/coordination.k8s.io/v1/namespaces/{key.namespace}/leases/{key.name}")

    async def replace_lease(self, lease: Object) -> Object:
        """Replace a Lease as it was read: a change by somebody else in between is a 409."""
        meta = lease["metadata"]
        path = f"/apis/coordination.k8s.io/v1/namespaces/{meta['namespace']}/leases/{meta['name']}"
        return await self._ask("PUT", path, lease)

    async def create_lease(self, lease: Object) -> Object:
        """Create a Lease; an existing one is a 409."""
        namespace = lease["metadata"]["namespace"]
        return await self._ask("POST", f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases", lease)

    async def _apply(self, path: str, body: Object) -> None:
        self.writes += 1
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        await self._ask("PATCH", path, body, kind=APPLY, query=query)

    async def _write(self, method: str, path: str, body: Object) -> None:
        self.writes += 1
        await self._ask(method, path, body)

    async def _find(self, path: str) -> Object | None:
        try:
            return await self._ask("GET", path)
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    async def _ask(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        *,
        kind: str = JSON,
        query: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        try:
            verb, url, headers, content, _ = await self._client.param_serialize(
                method,
                path,
                query_params=list((query or {}).items()),
                header_params={"Accept": JSON, "Content-Type": kind},
                body=body,
                auth_settings=["BearerToken"],
            )
            answer = await self._client.call_api(verb, url, headers, content, _request_timeout=TIMEOUT)
            response: aiohttp.ClientResponse = answer.response
            async with response:
                text = await response.text()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiError(None, f"the API server cannot be reached: {error or type(error).__name__}") from error
        if not 200 <= response.status < 300:
            raise ApiError(response.status, _message(text))
        answered: dict[str, Any] = json.loads(text)
        return answered


def _message(text: str) -> str:
    """The message of a Status object, or the text itself."""
    try:
        return str(json.loads(text).get("message") or text)
    except (ValueError, AttributeError):
        return text[:500]
