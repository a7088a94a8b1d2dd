"""A kind of objects that is watched: where the API server has them, and what is kept of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar
from urllib.parse import quote

from plimsoll_cluster.keys import Object, ObjectKey, controller_of, key_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Controller:
    """The owner that manages an object, as the object names it."""

    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Entry(Generic[T]):
    """One object in a store. `value` is all that is kept beside its identity; `deleting`: its deletion has begun."""

    key: ObjectKey
    uid: str
    version: int
    deleting: bool
    owner: Controller | None
    value: T


@dataclass(frozen=True, slots=True)
class Resource(Generic[T]):
    """A kind. `read` picks what is kept of an object; `selector` limits by labels which ones the server sends.

    `hint` is what to do when the server does not know the kind. A kind without namespaces is watched as a whole. `name`
    limits it to the object of that name, so that a Role may do the same.
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
        """The collection of one namespace; None means all."""
        scope = "" if namespace is None else f"/namespaces/{quote(namespace, safe='')}"
        return f"{self.base}{scope}/{self.plural}"

    def entry(self, item: Object) -> Entry[T]:
        """What is kept of an object."""
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
    """The resource version of an object or a list: an integer that grows with each write to its kind.

    Kubernetes has promised that since 1.35 (KEP-5504); etcd's revisions have always been so.
    """
    return int(item["metadata"]["resourceVersion"])
