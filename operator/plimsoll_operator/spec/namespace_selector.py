"""A label selector of the namespaces whose models a pool accepts, with the semantics of Kubernetes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

NAMESPACE_LABEL = "kubernetes.io/metadata.name"
"""The API server sets this label on every namespace to its name, and rejects changes."""


@dataclass(frozen=True, slots=True)
class Labels:
    """Labels of a namespace. `whole`: all labels are known; else only `NAMESPACE_LABEL` is, because the operator may
    not read namespaces.
    """

    values: Mapping[str, str] = field(default_factory=dict)
    whole: bool = True

    @classmethod
    def of_name(cls, namespace: str) -> Labels:
        """Return the labels that follow from a namespace's name."""
        return cls({NAMESPACE_LABEL: namespace}, whole=False)

    def knows(self, key: str) -> bool:
        """Return whether the value or absence of this label is known."""
        return self.whole or key in self.values


@dataclass(frozen=True, slots=True)
class Requirement:
    """A requirement of one label. `operator`: In, NotIn, Exists or DoesNotExist."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def holds(self, labels: Labels) -> bool | None:
        """Return whether the labels meet it; None if the label is not known."""
        if not labels.knows(self.key):
            return None
        value = labels.values.get(self.key)
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value is not None
            case _:
                return value is None


@dataclass(frozen=True, slots=True)
class Selector:
    """All requirements must hold; without any, it selects every namespace."""

    requirements: tuple[Requirement, ...] = ()

    def takes(self, labels: Labels) -> bool | None:
        """Return whether it selects a namespace with these labels; None if that depends on unknown labels."""
        answers = {requirement.holds(labels) for requirement in self.requirements}
        if False in answers:
            return False
        return None if None in answers else True

    def unknown(self, labels: Labels) -> tuple[str, ...]:
        """Return the labels that it requires and that are not known."""
        return tuple(sorted({one.key for one in self.requirements if not labels.knows(one.key)}))


def read_selector(values: Mapping[str, Any]) -> Selector:
    """Read the selector of an object that the API server accepted."""
    equal = [Requirement(key, "In", frozenset({value})) for key, value in values.get("matchLabels", {}).items()]
    others = [
        Requirement(one["key"], one["operator"], frozenset(one.get("values", ())))
        for one in values.get("matchExpressions", ())
    ]
    return Selector((*equal, *others))
