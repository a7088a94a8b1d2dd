"""Identities of objects, and whose child an object is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

GROUP, VERSION, PLURAL, KIND = "plimsoll.dev", "v1alpha1", "modeldeployments", "ModelDeployment"

HOST_KIND, HOSTS_PLURAL = "ModelHost", "modelhosts"

Object = Mapping[str, Any]
"""An object as the API server writes it."""


class ObjectKey(NamedTuple):
    """An object among those of its kind: its namespace ("" where the kind has none) and its name.

    A tuple, for tables are asked for it again and again: Python's own hash of a dataclass takes four times as long.
    """

    namespace: str
    name: str

    def of(self, kind: str) -> Key:
        """The same among all objects, as one of this kind."""
        return Key(kind, self.namespace, self.name)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Key(NamedTuple):
    """An object among all: its kind, its namespace and its name."""

    kind: str
    namespace: str
    name: str

    @property
    def object(self) -> ObjectKey:
        """The same among those of its kind."""
        return ObjectKey(self.namespace, self.name)

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


def key_of(item: Object) -> ObjectKey:
    """The key of an object among those of its kind."""
    meta = item["metadata"]
    return ObjectKey(meta.get("namespace", ""), meta["name"])


def controller_of(child: Object) -> Mapping[str, Any]:
    """The owner that manages an object, {} for none: a label alone outlives its owner."""
    owners = child["metadata"].get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), {})
