"""A fake API server: objects, versions, and the events of watches.

`fate` decides the outcome of each write. Stores get the events of a write when the test says so.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from datetime import datetime
from enum import Enum
from typing import Any

from operator_support.objects import EPOCH, Json, stamp

from plimsoll_cluster.resource import Resource
from plimsoll_operator.kube.api import Api, ApiError
from plimsoll_operator.spec.identity import API_VERSION, HOST_KIND, KIND, POOL_KIND, Object, ObjectKey

NAMESPACE = "team"
CHILDREN = ("Pod", "Service", "PodDisruptionBudget", "ControllerRevision")


class Fate(Enum):
    """The outcome of a write."""

    WELL = "it is done, and the answer says so"
    LOST = "it is done, and the answer is lost"
    LATE = "its client gives up, and it may be done later all the same"
    OVERLOADED = "it is not done, and the answer says so"
    BROKEN = "it is not done, and something in between fails"


class Server:
    """Objects by kind and name, of one namespace by default; `kinds` are further kinds.

    `secrets` cause no events; they can be read in the namespaces that are `readable`. `now`: the time of creations and
    deletions.
    """

    def __init__(self, *kinds: str) -> None:
        self.version = 1
        known = (KIND, POOL_KIND, HOST_KIND, *CHILDREN, *kinds)
        self.objects: dict[str, dict[str, Json]] = {kind: {} for kind in known}
        self.secrets: dict[ObjectKey, dict[str, str]] = {}
        self.readable: set[str] = set()
        self.told: dict[str, list[Json]] = {kind: [] for kind in self.objects}
        self.late: list[Callable[[], Any]] = []
        self.now: Callable[[], datetime] = lambda: EPOCH

    def put(self, kind: str, item: Object) -> Json:
        """Create or replace an object; return it as stored."""
        self.version += 1
        name = item["metadata"]["name"]
        known = self.objects[kind].get(name)
        uid = known["metadata"]["uid"] if known else f"uid-{self.version}"
        defaults = {"uid": uid, "namespace": NAMESPACE, "creationTimestamp": stamp(self.now()), "generation": 1}
        metadata = {**defaults, **item["metadata"], "resourceVersion": str(self.version)}
        stored = copy.deepcopy({**item, "metadata": metadata})
        self.objects[kind][name] = stored
        self.told[kind].append({"type": "MODIFIED" if known else "ADDED", "object": stored})
        return copy.deepcopy(stored)

    def change(self, kind: str, name: str, change: Callable[[Json], None]) -> Json:
        """Replace an object by a changed copy."""
        item = copy.deepcopy(self.objects[kind][name])
        change(item)
        return self.put(kind, item)

    def remove(self, kind: str, name: str) -> None:
        """Remove an object."""
        self.version += 1
        item = self.objects[kind].pop(name)
        gone = {**item, "metadata": {**item["metadata"], "resourceVersion": str(self.version)}}
        self.told[kind].append({"type": "DELETED", "object": gone})

    def owned(self, kind: str, uid: str) -> list[Json]:
        """Return the objects of this owner."""
        found = self.objects[kind].values()
        return [item for item in found if item["metadata"]["ownerReferences"][0]["uid"] == uid]


class ServerApi(Api):
    """The operator's requests. Calls `fate` at each write.

    `read_fate` decides whether `find` gets a response. `judge` gets each pod that is sent; the function that it returns
    is called just before the pod is created.
    """

    def __init__(
        self,
        server: Server,
        fate: Callable[[], Fate] = lambda: Fate.WELL,
        judge: Callable[[Object], Callable[[], object]] = lambda pod: lambda: None,
        read_fate: Callable[[], Fate] = lambda: Fate.WELL,
    ) -> None:
        self._read_fate = read_fate
        self._server = server
        self._fate = fate
        self._judge = judge
        self.asked: list[str] = []
        self.events: list[tuple[str, str, str]] = []

    async def find(self, resource: Resource[Any], key: ObjectKey) -> Object | None:
        self.asked.append(f"find {resource.kind}")
        if self._read_fate() is not Fate.WELL:
            raise ApiError(None, "the connection was closed")
        return copy.deepcopy(self._server.objects[resource.kind].get(key.name))

    async def get(self, resource: Resource[Any], key: ObjectKey) -> Object | None:
        self.asked.append(f"get {resource.kind}")
        return copy.deepcopy(self._server.objects[resource.kind].get(key.name))

    async def secret(self, key: ObjectKey) -> Object | None:
        self.asked.append("get Secret")
        if key.namespace not in self._server.readable:
            raise ApiError(403, f'secrets "{key.name}" is forbidden')
        found = self._server.secrets.get(key)
        return None if found is None else {"data": dict(found)}

    async def create(self, resource: Resource[Any], body: Object, *, strict: bool = False) -> Object:
        kind = resource.kind
        if kind != "Pod":
            return self._write(f"create {kind}", lambda: self._new(kind, body))
        judge, new = self._judge(body), {**body, "status": {"phase": "Pending"}}
        return self._write("create Pod", lambda: self._new(kind, new, judge))

    async def apply(self, resource: Resource[Any], body: Object) -> Object:
        def apply() -> Json:
            known = self._server.objects[resource.kind].get(body["metadata"]["name"])
            if known is not None and known.get("data") != body.get("data"):
                raise ApiError(422, "data is immutable")
            return self._server.put(resource.kind, body)

        return self._write(f"apply {resource.kind}", apply)

    async def delete(self, resource: Resource[Any], key: ObjectKey, uid: str, grace: int | None = None) -> None:
        kind = resource.kind

        def delete() -> Json:
            found = self._server.objects[kind].get(key.name)
            if found is not None and found["metadata"]["uid"] == uid and "deletionTimestamp" not in found["metadata"]:
                if kind == "Pod" and found["spec"].get("nodeName"):
                    leaving = {"deletionTimestamp": stamp(self._server.now())}
                    self._server.change(kind, key.name, lambda item: item["metadata"].update(leaving))
                else:
                    self._server.remove(kind, key.name)
            return {}

        self._write(f"delete {kind}", delete)

    async def apply_status(self, item: Object, status: Mapping[str, Any]) -> Object:
        def apply() -> Json:
            name, uid, kind = item["metadata"]["name"], item["metadata"]["uid"], item["kind"]
            known = self._server.objects[kind].get(name)
            if known is None or known["metadata"]["uid"] != uid:
                raise ApiError(404 if known is None else 409, "it is gone")
            return self._server.change(kind, name, lambda found: found.update(status=dict(status)))

        return self._write("apply status", apply)

    async def create_event(self, event: Object) -> None:
        self.asked.append("create Event")
        self.events.append((event["regarding"]["name"], event["reason"], event["note"]))

    def _new(self, kind: str, item: Object, before: Callable[[], object] = lambda: None) -> Json:
        if item["metadata"]["name"] in self._server.objects[kind]:
            raise ApiError(409, "it exists")
        before()
        return self._server.put(kind, item)

    def _write(self, what: str, write: Callable[[], Json]) -> Json:
        self.asked.append(what)
        fate = self._fate()
        if fate is Fate.OVERLOADED:
            raise ApiError(429, "too many requests")
        if fate is Fate.BROKEN:
            raise ApiError(500, "a webhook cannot be called")
        if fate is Fate.LATE:
            self._server.late.append(write)
            raise ApiError(None, "too slow")
        answer = write()
        if fate is Fate.LOST:
            raise ApiError(None, "the connection was closed")
        return answer


def model_body(name: str, replicas: int, memory: str = "1Gi") -> Json:
    """Return a ModelDeployment to create."""
    spec = {"model": {"source": "demo://x"}, "replicas": replicas, "resources": {"memory": memory}}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": spec}
