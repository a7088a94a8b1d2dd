"""Requests to the API server other than watches, the writes under way, and errors in our words.

Objects stay plain JSON: the client library's classes would drop fields that they do not know.
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
)

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")


class WritesUnderWay:
    """The writes that are under way. Each has a time limit itself; `wait` waits for `seconds` at most."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._tasks: set[asyncio.Task[Any]] = set()

    async def see_through(self, write: Coroutine[Any, Any, ResultT]) -> ResultT:
        """The result of `write`, which goes on to its end even if the caller is cancelled."""
        task = asyncio.create_task(write)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def wait(self) -> None:
        """Return once they have ended."""
        if not self._tasks:
            return
        logger.info("waiting for %d writes that are under way", len(self._tasks))
        _, late = await asyncio.wait(self._tasks, timeout=self._seconds)
        if late:
            logger.warning("%d writes have not ended within %.0f s, and may still be done", len(late), self._seconds)


FIELD_MANAGER = "plimsoll-operator"
READ_SECONDS = 30.0
WRITE_SECONDS = 8.0
"""A write ends, well or not, within this time: who loses the Lease still counts on it (leader_election.py)."""
LEASE_SECONDS = 4.0
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
PLURALS = {KIND: PLURAL, POOL_KIND: POOLS_PLURAL, HOST_KIND: HOSTS_PLURAL}
MODELS = f"/apis/{GROUP}/{VERSION}"
MANAGED = {"fieldManager": FIELD_MANAGER}
NAMESPACE_ENDS = "NamespaceTerminating"
"""The cause that the API server gives with a refusal to create."""
REFUSALS = frozenset({400, 403, 413, 422})
PASSING = frozenset({None, 401, 404, 409, 410, 429, 503, 504})
OWNER_UNSEEN = "no params found for policy binding"
"""Part of the refusal (422) of a pool's pod by the chart's admission policies: its namespace has no RuntimePool. It was
deleted just now, or it was created just now and this API server has not seen it yet."""


class ApiError(Exception):
    """The API server did not do what it was asked. `code` is its HTTP status, None when it could not be reached.

    `namespace_ends`: nothing more is made in this namespace, because it is being deleted.
    """

    def __init__(self, code: int | None, message: str, *, namespace_ends: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.namespace_ends = namespace_ends

    @property
    def is_refusal(self) -> bool:
        """Whether the same request would be refused again until somebody changes something."""
        return self.code in REFUSALS and not self.is_passing

    @property
    def is_passing(self) -> bool:
        """Whether it says nothing about the request itself: an outage, a conflict, too many requests."""
        return self.code in PASSING or OWNER_UNSEEN in str(self)

    @property
    def is_unsure(self) -> bool:
        """Whether the API server may have done it all the same, or may still do it."""
        return self.code is None or self.code >= 500


class Api:
    """Requests for ModelDeployments and their children. Every method raises ApiError."""

    def __init__(self, connection: Connection, writes_under_way: WritesUnderWay | None = None) -> None:
        """`writes_under_way` gets to know of each write while it is under way."""
        self._connection = connection
        self._writes_under_way = writes_under_way or WritesUnderWay(WRITE_SECONDS)

    async def serves_models(self) -> bool:
        """Whether the API server knows our kinds, and says so to clients."""
        found = await self._find(MODELS)
        return found is not None and set(PLURALS.values()) <= {kind["name"] for kind in found["resources"]}

    async def find(self, resource: Resource[Any], key: ObjectKey) -> Object | None:
        """One object of a kind that is watched, as it is now. A list of one name needs the right to list alone."""
        query = {"fieldSelector": f"metadata.name={key.name}"}
        if resource.selector:
            query["labelSelector"] = resource.selector
        found = await self._ask("GET", resource.path(key.namespace), query=query)
        return next(iter(found.get("items") or ()), None)

    async def service(self, key: ObjectKey) -> Object | None:
        """The Service of this name, whoever's it is."""
        return await self._find(f"/api/v1/namespaces/{key.namespace}/services/{key.name}")

    async def budget(self, key: ObjectKey) -> Object | None:
        """The PodDisruptionBudget of this name, whoever's it is."""
        return await self._find(_budget_path(key.namespace, key.name))

    async def create_pod(self, pod: Object) -> Object:
        """Create a pod; returns it. An existing one is left alone (409), one with unknown fields is refused (400)."""
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods"
        return await self._ask("POST", path, pod, query=MANAGED | {"fieldValidation": "Strict"})

    async def delete_pod(self, key: ObjectKey, uid: str) -> None:
        """Delete the pod with this uid; nothing happens when it is gone or another one has its name."""
        await self._delete(f"/api/v1/namespaces/{key.namespace}/pods/{key.name}", uid)

    async def create_service(self, service: Object) -> Object:
        """Create a Service; returns it. An existing one, whoever's it is, is left alone (409)."""
        path = f"/api/v1/namespaces/{service['metadata']['namespace']}/services"
        return await self._ask("POST", path, service, query=MANAGED)

    async def apply_service(self, service: Object) -> Object:
        """Server-side apply, ours with force: nobody else has a say in our Service's fields. Returns the Service."""
        meta = service["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/services/{meta['name']}"
        return await self._apply(path, service)

    async def create_budget(self, budget: Object) -> Object:
        """Create a PodDisruptionBudget, as with Services."""
        return await self._ask("POST", _budget_path(budget["metadata"]["namespace"]), budget, query=MANAGED)

    async def apply_budget(self, budget: Object) -> Object:
        """Server-side apply of a PodDisruptionBudget."""
        meta = budget["metadata"]
        return await self._apply(_budget_path(meta["namespace"], meta["name"]), budget)

    async def delete_budget(self, key: ObjectKey, uid: str) -> None:
        """Delete the PodDisruptionBudget with this uid."""
        await self._delete(_budget_path(key.namespace, key.name), uid)

    async def create_revision(self, revision: Object) -> Object:
        """Create a ControllerRevision, as with Services."""
        return await self._ask("POST", _revision_path(revision["metadata"]["namespace"]), revision, query=MANAGED)

    async def apply_revision(self, revision: Object) -> Object:
        """Server-side apply of a ControllerRevision. What it holds never changes (422)."""
        meta = revision["metadata"]
        return await self._apply(_revision_path(meta["namespace"], meta["name"]), revision)

    async def delete_revision(self, key: ObjectKey, uid: str) -> None:
        """Delete the ControllerRevision with this uid."""
        await self._delete(_revision_path(key.namespace, key.name), uid)

    async def apply_status(self, item: Object, status: Mapping[str, Any]) -> Object:
        """Server-side apply of the whole status of one of our objects; returns the object.

        One that is gone is a 404, another one of its name a 409.
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

    async def create_host(self, host: Object) -> Object:
        """Create a ModelHost; returns it. An existing one is a 409."""
        path = f"{MODELS}/namespaces/{host['metadata']['namespace']}/{HOSTS_PLURAL}"
        return await self._ask("POST", path, host, query=MANAGED)

    async def change_config_map(self, key: ObjectKey, version: int, data: Mapping[str, str | None]) -> Object:
        """Merge into the data of a ConfigMap as it was at a version; returns it. A change since then is a 409."""
        body = {"metadata": {"resourceVersion": str(version)}, "data": data}
        path = f"/api/v1/namespaces/{key.namespace}/configmaps/{key.name}"
        return await self._ask("PATCH", path, body, kind=MERGE, query=MANAGED)

    async def create_event(self, event: Object) -> None:
        """Record an event."""
        path = f"/apis/events.k8s.io/v1/namespaces/{event['metadata']['namespace']}/events"
        await self._ask("POST", path, event, query=MANAGED)

    async def secret(self, key: ObjectKey) -> Object | None:
        """A Secret, None when there is none."""
        return await self._find(f"/api/v1/namespaces/{key.namespace}/secrets/{key.name}")

    async def lease(self, key: ObjectKey) -> Object | None:
        """A Lease, None when there is none."""
        return await self._find(_lease_path(key.namespace, key.name), seconds=LEASE_SECONDS)

    async def replace_lease(self, lease: Object) -> Object:
        """Replace a Lease as it was read: a change by somebody else in between is a 409."""
        path = _lease_path(lease["metadata"]["namespace"], lease["metadata"]["name"])
        return await self._ask("PUT", path, lease, seconds=LEASE_SECONDS)

    async def create_lease(self, lease: Object) -> Object:
        """Create a Lease; an existing one is a 409."""
        return await self._ask("POST", _lease_path(lease["metadata"]["namespace"]), lease, seconds=LEASE_SECONDS)

    async def deployment(self, key: ObjectKey) -> Object | None:
        """A Deployment, None when there is none."""
        path = f"/apis/apps/v1/namespaces/{key.namespace}/deployments/{key.name}"
        return await self._find(path, seconds=LEASE_SECONDS)

    async def may(self, right: Right, namespace: str | None, name: str = "") -> bool:
        """Whether the API server lets us; `namespace` None asks for all of them, and for what has none."""
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

    async def _delete(self, path: str, uid: str) -> None:
        try:
            await self._ask("DELETE", path, {"preconditions": {"uid": uid}})
        except ApiError as error:
            if error.code not in (404, 409):
                raise

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
        """One request; `seconds` is its time limit where the method's own is too long."""
        patience = aiohttp.ClientTimeout(total=seconds or (READ_SECONDS if method == "GET" else WRITE_SECONDS))
        content = None if body is None else msgspec.json.encode(body)
        asking = self._exchange(method, path, query or {}, content, kind, patience)
        try:
            status, data = await (asking if method == "GET" else self._writes_under_way.see_through(asking))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiError(None, f"the API server cannot be reached: {error or type(error).__name__}") from error
        if not 200 <= status < 300:
            raise _error(status, data)
        try:
            answered: dict[str, Any] = msgspec.json.decode(data)
        except UNREADABLE as error:
            raise ApiError(None, f"what the API server answered cannot be read: {error}") from error
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


def _budget_path(namespace: str, name: str = "") -> str:
    return f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets/{name}".rstrip("/")


def _revision_path(namespace: str, name: str = "") -> str:
    return f"/apis/apps/v1/namespaces/{namespace}/controllerrevisions/{name}".rstrip("/")


def _lease_path(namespace: str, name: str = "") -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}".rstrip("/")


def _error(code: int, data: bytes) -> ApiError:
    """What a Status object says, or else the text itself."""
    text = data.decode(errors="replace")
    try:
        status = msgspec.json.decode(data)
        causes = (status.get("details") or {}).get("causes") or ()
        message = str(status.get("message") or text)
    except (*UNREADABLE, AttributeError):
        return ApiError(code, text[:500])
    return ApiError(code, message, namespace_ends=any(cause.get("reason") == NAMESPACE_ENDS for cause in causes))
