"""Descriptions of watched kinds: the path on the API server, and the data kept of each object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar
from urllib.parse import quote

from plimsoll_cluster.keys import Object, ObjectKey, controller_of, key_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Controller:
    """Kind, name and uid of the owner that controls an object."""

    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Entry(Generic[T]):
    """An object in a store: its identity and the extracted `value`. `deleting`: the object has a deletion timestamp."""

    key: ObjectKey
    uid: str
    version: int
    deleting: bool
    owner: Controller | None
    value: T


@dataclass(frozen=True, slots=True)
class Resource(Generic[T]):
    """A watched kind. `read` extracts the value to keep of an object; `selector` is a label selector for lists and
    watches.

    `hint` is advice for a 404: the server does not have the kind. Without `namespaced` the kind is cluster-scoped.
    `name` restricts lists and watches to the object of that name, so that a Role may be restricted to it, too.
    """

    kind: str
    base: str
    plural: str
    read: Callable[[Object], T]
    selector: str = ""
    namespaced: bool = True
    hint: str = ""
    name: str = ""

    def path(self, namespace: str | None) -> str:
        """Return the URL path of the collection of one namespace, or of all (None)."""
        scope = "" if namespace is None else f"/namespaces/{quote(namespace, safe='')}"
        return f"{self.base}{scope}/{self.plural}"

    def entry(self, item: Object) -> Entry[T]:
        """Return the entry to keep of an object."""
        meta, owner = item["metadata"], controller_of(item)
        return Entry(
            key=key_of(item),
            uid=meta["uid"],
            version=version_of(item),
            deleting="deletionTimestamp" in meta,
            owner=Controller(owner["kind"], owner["name"], owner["uid"]) if owner else None,
            value=self.read(item),
        )


def version_of(item: Object) -> int:
    """Return the resource version of an object or a list: an integer that grows with each write to its kind.

    Kubernetes guarantees this since 1.35 (KEP-5504); it has always been true of etcd's revisions.
    """
    return int(item["metadata"]["resourceVersion"])
