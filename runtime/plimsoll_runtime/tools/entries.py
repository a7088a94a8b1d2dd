"""Formats that other packages bring, beside our own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, Protocol, TypeVar


class Format(Protocol):
    """What all formats say of themselves."""

    def fits(self, template: str) -> bool:
        """Whether a chat template (Jinja) renders what it reads."""


FormatT = TypeVar("FormatT", bound=Format)


class UnknownFormat(ValueError):
    """No format has this name, or what has it is none; the message says which there are."""


class Entries(Generic[FormatT]):
    """The formats of one kind under an entry point group. `kind` names it to users; a format has the attributes
    `needed`."""

    def __init__(self, group: str, kind: str, needed: Sequence[str]) -> None:
        self._group = group
        self._kind = kind
        self._needed = needed

    def named(self, name: str, ours: Mapping[str, FormatT]) -> FormatT:
        """The format of a name. Another package's comes before ours. Raises UnknownFormat."""
        others = self._others()
        if name in others:
            return self._loaded(others[name])
        if name not in ours:
            names = ", ".join(sorted({*ours, *others}))
            raise UnknownFormat(f"there is no {self._kind} named {name!r}; there are: {names}")
        return ours[name]

    def fitting(self, template: str, ours: Mapping[str, FormatT]) -> FormatT | None:
        """The first that a chat template fits, others' first. Raises UnknownFormat for what cannot be loaded."""
        candidates = [*(self._loaded(point) for point in self._others().values()), *ours.values()]
        return next((candidate for candidate in candidates if candidate.fits(template)), None)

    def _others(self) -> Mapping[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self._group)}

    def _loaded(self, point: EntryPoint) -> FormatT:
        try:
            found = point.load()
        except Exception as error:  # it is another package's code
            raise UnknownFormat(f"{self._group}: {point.name} ({point.value}) cannot be loaded: {error}") from error
        made: FormatT = found() if isinstance(found, type) else found
        missing = [each for each in self._needed if not hasattr(made, each)]
        if missing:
            raise UnknownFormat(f"{self._group}: {point.name} ({point.value}) has no {', '.join(missing)}")
        return made
