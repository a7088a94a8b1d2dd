"""Keys of objects, and the owner that controls an object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

GROUP, VERSION, PLURAL, KIND = "plimsoll.dev", "v1alpha1", "modeldeployments", "ModelDeployment"

HOST_KIND, HOSTS_PLURAL = "ModelHost", "modelhosts"

Object = Mapping[str, Any]
"""An object as parsed from the API server's JSON."""


class ObjectKey(NamedTuple):
    """Namespace ("" for cluster-scoped kinds) and name of an object; unique within its kind.

    A tuple, since it is looked up very often: Python's generated hash of a dataclass takes four times as long.
    """

    namespace: str
    name: str

    def of(self, kind: str) -> Key:
        """Return this key with a kind, which makes it unique across kinds."""
        return Key(kind, self.namespace, self.name)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Key(NamedTuple):
    """Kind, namespace and name of an object; unique across kinds."""

    kind: str
    namespace: str
    name: str

    @property
    def object(self) -> ObjectKey:
        """The key without the kind."""
        return ObjectKey(self.namespace, self.name)

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


def key_of(item: Object) -> ObjectKey:
    """Return the key of an object within its kind."""
    meta = item["metadata"]
    return ObjectKey(meta.get("namespace", ""), meta["name"])


def controller_of(child: Object) -> Mapping[str, Any]:
    """Return the owner reference of the controller of an object, or {}. A label does not suffice: it outlives the
    owner.
    """
    owners = child["metadata"].get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), {})
