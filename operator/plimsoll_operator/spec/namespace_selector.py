"""Which namespaces a pool takes models of: a label selector, as Kubernetes has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

NAMESPACE_LABEL = "kubernetes.io/metadata.name"
"""The API server puts it on every namespace, with the namespace's name, and lets nobody change it."""


@dataclass(frozen=True, slots=True)
class Labels:
    """Labels of a namespace. `whole`: there are no others; else only its name is known, as nobody may look."""

    values: Mapping[str, str] = field(default_factory=dict)
    whole: bool = True

    @classmethod
    def of_name(cls, namespace: str) -> Labels:
        """What is known of a namespace without looking at it."""
        return cls({NAMESPACE_LABEL: namespace}, whole=False)

    def knows(self, key: str) -> bool:
        """Whether it is known if it has this label."""
        return self.whole or key in self.values


@dataclass(frozen=True, slots=True)
class Requirement:
    """What must hold of one label. `operator`: In, NotIn, Exists or DoesNotExist."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def holds(self, labels: Labels) -> bool | None:
        """None where the label is not known."""
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
    """All of its requirements must hold; without any it takes every namespace."""

    requirements: tuple[Requirement, ...] = ()

    def takes(self, labels: Labels) -> bool | None:
        """None where that depends on labels that are not known."""
        answers = {requirement.holds(labels) for requirement in self.requirements}
        if False in answers:
            return False
        return None if None in answers else True

    def unknown(self, labels: Labels) -> tuple[str, ...]:
        """The labels that it asks for and that are not known."""
        return tuple(sorted({one.key for one in self.requirements if not labels.knows(one.key)}))


def read_selector(values: Mapping[str, Any]) -> Selector:
    """From an object that the API server accepted."""
    equal = [Requirement(key, "In", frozenset({value})) for key, value in values.get("matchLabels", {}).items()]
    others = [
        Requirement(one["key"], one["operator"], frozenset(one.get("values", ())))
        for one in values.get("matchExpressions", ())
    ]
    return Selector((*equal, *others))
