"""Writes of a reconcile; each leaves an expectation that the stores must show before the object's next reconcile."""

from __future__ import annotations

import random
import string
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from plimsoll_cluster.keys import Object, ObjectKey
from plimsoll_cluster.store import Store
from plimsoll_operator.kube.api import ApiError
from plimsoll_operator.kube.context import ReconcileContext
from plimsoll_operator.planning.actions import CreatePod
from plimsoll_operator.spec.identity import KIND

SUFFIX = string.ascii_lowercase + string.digits
SUFFIX_LENGTH = 5


@dataclass(frozen=True, slots=True)
class PodFactory:
    """Builds pods of a spec: `pod` builds that of an action with a suffix, `revision` identifies all other content."""

    revision: str
    pod: Callable[[str, CreatePod], Object]


class Writer:
    """Writes for objects of one kind. Every method raises ApiError."""

    def __init__(self, context: ReconcileContext, kind: str = KIND) -> None:
        self._api = context.api
        self._stores = context.stores
        self._expectations = context.expectations
        self._kind = kind
        self._unsure: dict[ObjectKey, list[tuple[str, str]]] = {}
        self._taken: dict[ObjectKey, set[str]] = {}

    async def create_pod(self, owner: ObjectKey, factory: PodFactory, action: CreatePod) -> str:
        """Create a pod and return its name. The name is left out of errors, because a message that differs each time
        would change the status in every reconcile.

        If the result of a creation is unknown, the next try uses the same name: the API server creates no two pods of
        one name.
        """
        kept, present = self._unsure.setdefault(owner, []), factory.revision
        again = next((known for known in kept if known[0] == present), None)
        made = again or (present, "".join(random.choices(SUFFIX, k=SUFFIX_LENGTH)))
        pod = factory.pod(made[1], action)
        name: str = pod["metadata"]["name"]
        kept.append(made)
        try:
            await self._apply(
                owner, self._stores.pods, name, self._api.create(self._stores.pods.resource, pod, strict=True)
            )
        except ApiError as error:
            if error.code == 409:  # An earlier try succeeded late: the next reconcile must see its pod.
                self._expectations.unsure(owner.of(self._kind), self._stores.pods, ObjectKey(owner.namespace, name))
            if not error.is_unsure:
                self._settle(owner, made)
            words = str(error).replace(name, owner.name)
            raise ApiError(error.code, words, namespace_ends=error.namespace_ends) from error
        self._settle(owner, made)
        return name

    async def create(self, owner: ObjectKey, store: Store[Any], body: Object) -> bool:
        """Create a child; return False if there is one of this name that the store does not have."""
        kind = store.resource.kind
        try:
            await self._apply(owner, store, body["metadata"]["name"], self._api.create(store.resource, body))
        except ApiError as error:
            if error.code != 409:
                raise
            self._taken.setdefault(owner, set()).add(kind)
            return False
        if taken := self._taken.get(owner):
            taken.discard(kind)
        return True

    async def apply(self, owner: ObjectKey, store: Store[Any], body: Object) -> None:
        """Write the wanted fields of a child (`body`) by server-side apply."""
        await self._apply(owner, store, body["metadata"]["name"], self._api.apply(store.resource, body))

    async def delete(self, owner: ObjectKey, store: Store[Any], name: str, uid: str, grace: int | None = None) -> None:
        """Delete a child that the store has, and expect the store to show it; one that is gone is no error. `grace`: as
        in `Api.delete`.
        """
        key = ObjectKey(owner.namespace, name)
        with self._noting(owner, store, key):
            await self._api.delete(store.resource, key, uid, grace)
        self._expectations.deleted(owner.of(self._kind), store, key, uid)

    async def apply_status(self, owner: ObjectKey, item: Object, status: Mapping[str, Any]) -> None:
        """Write the whole status of the object `owner` itself."""
        await self._apply(owner, self._stores.of(self._kind), owner.name, self._api.apply_status(item, status))

    def is_taken(self, owner: ObjectKey, store: Store[Any]) -> bool:
        """Return whether the last creation of a child in `store` failed because an unwatched object has its name."""
        return store.resource.kind in self._taken.get(owner, ())

    def forget(self, owner: ObjectKey) -> None:
        """Discard the records of a deleted object."""
        self._unsure.pop(owner, None)
        self._taken.pop(owner, None)
        self._expectations.forget(owner.of(self._kind))

    async def look(self, owner: ObjectKey) -> None:
        """Read each object whose last write has an unknown result from the API server, and expect the store to show
        what was read. Raise ApiError.
        """
        key = owner.of(self._kind)
        for unknown in self._expectations.unknown(key):
            found = await self._api.find(unknown.store.resource, unknown.key)
            self._expectations.learn(key, unknown, found)

    async def _apply(self, owner: ObjectKey, store: Store[Any], name: str, request: Awaitable[Object]) -> None:
        """Send a write, and expect the store to show the API server's response before the object's next reconcile."""
        with self._noting(owner, store, ObjectKey(owner.namespace, name)):
            answer = await request
        self._expectations.written(owner.of(self._kind), store, answer)

    def _settle(self, owner: ObjectKey, made: tuple[str, str]) -> None:
        """Discard all records of tries with this pod name, because their result is known."""
        left = [known for known in self._unsure[owner] if known != made]
        if left:
            self._unsure[owner] = left
        else:
            del self._unsure[owner]

    @contextmanager
    def _noting(self, owner: ObjectKey, store: Store[Any], written: ObjectKey) -> Iterator[None]:
        """If the write in the block ends with an unknown result, let the next reconcile read the object first."""
        try:
            yield
        except ApiError as error:
            if error.is_unsure:
                self._expectations.unsure(owner.of(self._kind), store, written)
            raise
