"""The client of the API server: its requests except watches, the writes that are still running, and errors.

Objects stay plain JSON: the client library's classes would drop fields that they do not have.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

import aiohttp
import msgspec

from plimsoll_cluster.connection import JSON, Connection
from plimsoll_cluster.decode_errors import UNREADABLE
from plimsoll_cluster.resource import Resource
from plimsoll_operator.kube.rbac import Right
from plimsoll_operator.spec.identity import (
    GROUP,
    HOST_KIND,
    HOSTS_PLURAL,
    KIND,
    PLURAL,
    POOL_KIND,
    POOLS_PLURAL,
    VERSION,
    Object,
    ObjectKey,
    key_of,
)

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")


class WritesUnderWay:
    """The running writes. Each has its own time limit; `wait` waits for at most `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._tasks: set[asyncio.Task[Any]] = set()

    async def see_through(self, write: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Return the result of `write`, which runs to its end even if the caller is cancelled."""
        task = asyncio.create_task(write)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def wait(self) -> None:
        """Wait until the running writes have ended, at most for the seconds given at construction; log those that have
        not.
        """
        if not self._tasks:
            return
        logger.info("waiting for %d running writes", len(self._tasks))
        _, late = await asyncio.wait(self._tasks, timeout=self._seconds)
        if late:
            logger.warning("%d writes have not ended within %.0f s and may still succeed", len(late), self._seconds)


FIELD_MANAGER = "plimsoll-operator"
READ_SECONDS = 30.0
WRITE_SECONDS = 8.0
"""The time limit of a write, on which leader election relies (leader_election.py)."""
LEASE_SECONDS = 4.0
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
PLURALS = {KIND: PLURAL, POOL_KIND: POOLS_PLURAL, HOST_KIND: HOSTS_PLURAL}
MODELS = f"/apis/{GROUP}/{VERSION}"
MANAGED = {"fieldManager": FIELD_MANAGER}
NAMESPACE_ENDS = "NamespaceTerminating"
"""The cause that the API server gives when it rejects creations in a namespace that is being deleted."""
REFUSALS = frozenset({400, 403, 413, 422})
PASSING = frozenset({None, 401, 404, 409, 410, 429, 503, 504})
OWNER_UNSEEN = "no params found for policy binding"
"""Part of the rejection (422) of a pool's pod by the chart's admission policies: its namespace has no RuntimePool. The
pool was just deleted, or was just created and this API server does not show it yet.
"""


class ApiError(Exception):
    """A request to the API server failed. `code` is its HTTP status, None if it was not reachable.

    `namespace_ends`: the namespace is being deleted, so nothing can be created in it.
    """

    def __init__(self, code: int | None, message: str, *, namespace_ends: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.namespace_ends = namespace_ends

    @property
    def is_refusal(self) -> bool:
        """Whether the same request would be rejected again until something changes."""
        return self.code in REFUSALS and not self.is_passing

    @property
    def is_passing(self) -> bool:
        """Whether the cause is not the request itself: an outage, a conflict, too many requests."""
        return self.code in PASSING or OWNER_UNSEEN in str(self)

    @property
    def is_unsure(self) -> bool:
        """Whether the API server may have executed the request, or may still do so."""
        return self.code is None or self.code >= 500


class Api:
    """Requests to the API server, except watches. Every method raises ApiError."""

    def __init__(self, connection: Connection, writes_under_way: WritesUnderWay | None = None) -> None:
        """Send requests over `connection`. `writes_under_way` holds each write while it runs."""
        self._connection = connection
        self._writes_under_way = writes_under_way or WritesUnderWay(WRITE_SECONDS)

    async def serves_models(self) -> bool:
        """Return whether the API server serves our CRDs: ModelDeployments, RuntimePools and ModelHosts."""
        found = await self._find(MODELS)
        return found is not None and set(PLURALS.values()) <= {kind["name"] for kind in found["resources"]}

    async def find(self, resource: Resource[Any], key: ObjectKey) -> Object | None:
        """Return one object of a watched kind in its present state; None if there is none. It is read by a list of one
        name, which needs only the right to list.
        """
        query = {"fieldSelector": f"metadata.name={key.name}"}
        if resource.selector:
            query["labelSelector"] = resource.selector
        found = await self._ask("GET", resource.path(key.namespace), query=query)
        return next(iter(found.get("items") or ()), None)

    async def get(self, resource: Resource[Any], key: ObjectKey) -> Object | None:
        """Return the object of this name, of any owner; None if there is none."""
        return await self._find(_path_of(resource, key))

    async def create(self, resource: Resource[Any], body: Object, *, strict: bool = False) -> Object:
        """Create an object and return it. An existing one, of any owner, is a 409; with `strict`, unknown fields are a
        400.
        """
        query = MANAGED | ({"fieldValidation": "Strict"} if strict else {})
        return await self._ask("POST", resource.path(body["metadata"]["namespace"]), body, query=query)

    async def apply(self, resource: Resource[Any], body: Object) -> Object:
        """Write an object of ours by server-side apply, with force because all its fields are ours; return it."""
        return await self._apply(_path_of(resource, key_of(body)), body)

    async def delete(self, resource: Resource[Any], key: ObjectKey, uid: str, grace: int | None = None) -> None:
        """Delete the object with this uid; do nothing if it is gone or another one has its name. `grace`: the grace
        period of a pod in seconds, None for its own.
        """
        body: Object = {"preconditions": {"uid": uid}} | ({} if grace is None else {"gracePeriodSeconds": grace})
        try:
            await self._ask("DELETE", _path_of(resource, key), body)
        except ApiError as error:
            if error.code not in (404, 409):
                raise

    async def apply_status(self, item: Object, status: Mapping[str, Any]) -> Object:
        """Write the whole status of a ModelDeployment, RuntimePool or ModelHost by server-side apply; return it.

        A missing object is a 404, another one of its name a 409.
        """
        meta = item["metadata"]
        body = {
            "apiVersion": item["apiVersion"],
            "kind": item["kind"],
            "metadata": {"name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"]},
            "status": status,
        }
        return await self._apply(
            f"{MODELS}/namespaces/{meta['namespace']}/{PLURALS[item['kind']]}/{meta['name']}/status", body
        )

    async def change_config_map(self, key: ObjectKey, version: int, data: Mapping[str, str | None]) -> Object:
        """Merge `data` into that of a ConfigMap, and return the ConfigMap; None removes a key. If its
        resource version is not `version`, this is a 409.
        """
        body = {"metadata": {"resourceVersion": str(version)}, "data": data}
        path = f"/api/v1/namespaces/{key.namespace}/configmaps/{key.name}"
        return await self._ask("PATCH", path, body, kind=MERGE, query=MANAGED)

    async def create_event(self, event: Object) -> None:
        """Create an event."""
        path = f"/apis/events.k8s.io/v1/namespaces/{event['metadata']['namespace']}/events"
        await self._ask("POST", path, event, query=MANAGED)

    async def secret(self, key: ObjectKey) -> Object | None:
        """Return a Secret, None if there is none."""
        return await self._find(f"/api/v1/namespaces/{key.namespace}/secrets/{key.name}")

    async def lease(self, key: ObjectKey) -> Object | None:
        """Return a Lease, None if there is none."""
        return await self._find(_lease_path(key.namespace, key.name), seconds=LEASE_SECONDS)

    async def replace_lease(self, lease: Object) -> Object:
        """Replace a Lease. A change since it was read is a 409."""
        path = _lease_path(lease["metadata"]["namespace"], lease["metadata"]["name"])
        return await self._ask("PUT", path, lease, seconds=LEASE_SECONDS)

    async def create_lease(self, lease: Object) -> Object:
        """Create a Lease. An existing one is a 409."""
        return await self._ask("POST", _lease_path(lease["metadata"]["namespace"]), lease, seconds=LEASE_SECONDS)

    async def deployment(self, key: ObjectKey) -> Object | None:
        """Return a Deployment, None if there is none."""
        path = f"/apis/apps/v1/namespaces/{key.namespace}/deployments/{key.name}"
        return await self._find(path, seconds=LEASE_SECONDS)

    async def may(self, right: Right, namespace: str | None, name: str = "") -> bool:
        """Return whether the operator has a right; `namespace` None asks for all namespaces, and for kinds without
        namespaces.
        """
        group, kind, verb = right
        resource, _, subresource = kind.partition("/")
        attributes = {"group": group, "resource": resource, "subresource": subresource, "verb": verb, "name": name}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {**attributes, "namespace": namespace or ""}},
        }
        answer = await self._ask("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
        return bool(answer["status"]["allowed"])

    async def _apply(self, path: str, body: Object) -> Object:
        return await self._ask("PATCH", path, body, kind=APPLY, query=MANAGED | {"force": "true"})

    async def _find(self, path: str, *, seconds: float | None = None) -> Object | None:
        try:
            return await self._ask("GET", path, seconds=seconds)
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
        seconds: float | None = None,
    ) -> dict[str, Any]:
        """Send one request; `seconds` replaces the time limit of its method."""
        patience = aiohttp.ClientTimeout(total=seconds or (READ_SECONDS if method == "GET" else WRITE_SECONDS))
        content = None if body is None else msgspec.json.encode(body)
        asking = self._exchange(method, path, query or {}, content, kind, patience)
        try:
            status, data = await (asking if method == "GET" else self._writes_under_way.see_through(asking))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiError(None, f"the API server is not reachable: {error or type(error).__name__}") from error
        if not 200 <= status < 300:
            raise _error(status, data)
        try:
            answered: dict[str, Any] = msgspec.json.decode(data)
        except UNREADABLE as error:
            raise ApiError(None, f"the API server's response is not valid JSON: {error}") from error
        return answered

    async def _exchange(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        content: bytes | None,
        kind: str,
        patience: aiohttp.ClientTimeout,
    ) -> tuple[int, bytes]:
        response = await self._connection.ask(method, path, query, content, kind=kind, patience=patience)
        async with response:
            return response.status, await response.read()


def _path_of(resource: Resource[Any], key: ObjectKey) -> str:
    return f"{resource.path(key.namespace)}/{key.name}"


def _lease_path(namespace: str, name: str = "") -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}".rstrip("/")


def _error(code: int, data: bytes) -> ApiError:
    """Return the error of a Status object, or of other text."""
    text = data.decode(errors="replace")
    try:
        status = msgspec.json.decode(data)
        causes = (status.get("details") or {}).get("causes") or ()
        message = str(status.get("message") or text)
    except (*UNREADABLE, AttributeError):
        return ApiError(code, text[:500])
    return ApiError(code, message, namespace_ends=any(cause.get("reason") == NAMESPACE_ENDS for cause in causes))
