"""A reference to one item of a Secret."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from plimsoll_operator.spec.identity import ObjectKey


@dataclass(frozen=True, slots=True)
class SecretItem:
    """The item `key` of the data of a Secret."""

    namespace: str
    name: str
    key: str

    @property
    def secret(self) -> ObjectKey:
        """Namespace and name of the Secret."""
        return ObjectKey(self.namespace, self.name)


def read_secret_item(values: Mapping[str, str] | None, namespace: str) -> SecretItem | None:
    """Read a `tokenSecret` of an object in this namespace; None if the object has none."""
    return None if values is None else SecretItem(namespace, values["name"], values["key"])
