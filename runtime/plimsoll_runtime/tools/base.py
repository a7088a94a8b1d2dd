"""The interface of tool-call formats, the parts of an output, and formats of other packages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, Protocol, TypeVar


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. `parameters` is the JSON Schema of its arguments, an object. A `strict` tool
    gets only arguments that its schema accepts.
    """

    name: str
    description: str | None
    parameters: Mapping[str, Any]
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Text:
    """Output for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Reasoning text."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegins:
    """Call number `index` (from 0) calls this tool; its arguments follow."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """Part of a call's arguments. All parts of a call form a JSON object."""

    index: int
    text: str


Part = Text | Reasoning | CallBegins | Arguments


class ToolParser(Protocol):
    """Parses one output as it grows."""

    def push(self, text: str) -> Sequence[Part]:
        """Parse more text, and return its parts. Only a possible start of a call is held back."""

    def finish(self) -> Sequence[Part]:
        """End the output, and return text that was held back but is no call."""


class ToolFormat(Protocol):
    """A format in which models write tool calls."""

    @property
    def name(self) -> str:
        """The format's name for users."""

    @property
    def special(self) -> bool:
        """Whether calls have special tokens as markers, so that the text to parse must include special tokens."""

    def fits(self, template: str) -> bool:
        """Return whether a chat template (Jinja) writes calls in this format."""

    def parser(self, tools: Sequence[Tool]) -> ToolParser:
        """Return a parser for one output, which may call these tools. Calls of other names are text."""

    def grammar(
        self, tools: Sequence[Tool], special_id: Callable[[str], int | None], *, required: bool, parallel: bool
    ) -> str:
        """Return the grammar of valid outputs, in llguidance's Lark notation: they call only these tools, with
        arguments of their schemas.

        `special_id` returns the id of a marker that is a special token of the vocabulary, and None for one that
        consists of other tokens. The former is written as `<[id]>`, because `[TOOL_CALLS]` has no name in the notation,
        the latter as a string. If calls are `required`, there is at least one and no other text. Otherwise text is
        allowed, and calls in it: a call starts with its marker and its first words (`{`, or the name of a tool); a
        marker without these is text. Without `parallel` there is at most one call. Raises ConstraintError if the
        format, or a schema in it, cannot be enforced.
        """


class Format(Protocol):
    """The part of the interface that all formats share."""

    def fits(self, template: str) -> bool:
        """Return whether a chat template (Jinja) uses the format."""


FormatT = TypeVar("FormatT", bound=Format)


class UnknownFormat(ValueError):
    """No valid format has this name; the message lists the available ones."""


class Entries(Generic[FormatT]):
    """The formats of one kind in an entry point group. `kind` is its name in messages; formats must have the attributes
    `needed`.
    """

    def __init__(self, group: str, kind: str, needed: Sequence[str]) -> None:
        self._group = group
        self._kind = kind
        self._needed = needed

    def named(self, name: str, ours: Mapping[str, FormatT]) -> FormatT:
        """Return the format of a name. Formats of other packages take precedence. Raises UnknownFormat."""
        others = self._others()
        if name in others:
            return self._loaded(others[name])
        if name not in ours:
            names = ", ".join(sorted({*ours, *others}))
            raise UnknownFormat(f"unknown {self._kind} {name!r}; choose one of: {names}")
        return ours[name]

    def fitting(self, template: str, ours: Mapping[str, FormatT]) -> FormatT | None:
        """Return the first format that fits a chat template, other packages' formats first, or None. Raises
        UnknownFormat if one cannot be loaded.
        """
        candidates = [*(self._loaded(point) for point in self._others().values()), *ours.values()]
        return next((candidate for candidate in candidates if candidate.fits(template)), None)

    def _others(self) -> Mapping[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self._group)}

    def _loaded(self, point: EntryPoint) -> FormatT:
        try:
            found = point.load()
        except Exception as error:  # code of another package may raise anything
            raise UnknownFormat(f"{self._group}: {point.name} ({point.value}) cannot be loaded: {error}") from error
        made: FormatT = found() if isinstance(found, type) else found
        missing = [each for each in self._needed if not hasattr(made, each)]
        if missing:
            raise UnknownFormat(
                f"{self._group}: {point.name} ({point.value}) lacks the attributes {', '.join(missing)}"
            )
        return made
