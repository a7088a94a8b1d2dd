"""The name rules of an installation: which namespaces may use which served names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rule:
    """Reserves names for namespaces. Both are exact or prefixes that end in `*`; without namespaces, no namespace may
    use the names.
    """

    names: tuple[str, ...]
    namespaces: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reserved:
    """Why a namespace may not claim a served name: a rule's `pattern` reserves it for `namespaces`."""

    pattern: str
    namespaces: tuple[str, ...]


class NameRules:
    """The rules of an installation.

    If several patterns match a name, the most specific applies: an exact name, then the longest prefix. Rules with the
    same pattern are merged.
    """

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self._reserved: dict[str, tuple[str, ...]] = {}
        for rule in rules:
            for pattern in rule.names:
                before = self._reserved.get(pattern, ())
                self._reserved[pattern] = tuple(dict.fromkeys((*before, *rule.namespaces)))
        lengths = {len(pattern) - 1 for pattern in self._reserved if pattern.endswith("*")}
        self._lengths = sorted(lengths, reverse=True)

    def refusal(self, name: str, namespace: str) -> Reserved | None:
        """Return why a namespace may not claim a name; None if it may."""
        pattern = self._deciding(name)
        if pattern is None or any(_matches(one, namespace) for one in self._reserved[pattern]):
            return None
        return Reserved(pattern, self._reserved[pattern])

    def _deciding(self, name: str) -> str | None:
        if name in self._reserved:
            return name
        prefixes = (f"{name[:length]}*" for length in self._lengths if length <= len(name))
        return next((pattern for pattern in prefixes if pattern in self._reserved), None)


NO_RULES = NameRules()


def _matches(pattern: str, text: str) -> bool:
    return text.startswith(pattern[:-1]) if pattern.endswith("*") else text == pattern
