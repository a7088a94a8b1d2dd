"""What a tool-call format implements, the parts of an output, and formats of other packages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, Protocol, TypeVar


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. `parameters` is the JSON Schema of its arguments, an object. A `strict` one
    is called by no arguments that its schema refuses.
    """

    name: str
    description: str | None
    parameters: Mapping[str, Any]
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Text:
    """Words for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """What the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegins:
    """Call number `index` (from 0) is of this tool; its arguments follow."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of a call's arguments. All of a call's together are a JSON object, as text."""

    index: int
    text: str


Part = Text | Reasoning | CallBegins | Arguments


class ToolParser(Protocol):
    """Reads one answer as it grows."""

    def push(self, text: str) -> Sequence[Part]:
        """What more text says. What may be the beginning of a call is held back, and nothing else."""

    def finish(self) -> Sequence[Part]:
        """The answer has ended: what was held back and is no call after all."""


class ToolFormat(Protocol):
    """A format."""

    @property
    def name(self) -> str:
        """How a user names it."""

    @property
    def special(self) -> bool:
        """Whether calls are marked by special tokens, which texts leave out elsewhere."""

    def fits(self, template: str) -> bool:
        """Whether a chat template (Jinja) renders calls in this format."""

    def parser(self, tools: Sequence[Tool]) -> ToolParser:
        """For one answer, which may call these tools. What names another tool is text."""

    def grammar(
        self, tools: Sequence[Tool], special_id: Callable[[str], int | None], *, required: bool, parallel: bool
    ) -> str:
        """Answers that are valid, in Lark's notation as llguidance reads it: their calls are of these tools, with
        arguments of their schemas. `special_id` gives the id of a marker that is a special token of the vocabulary,
        and None for one that is spelled by other tokens: the former is written as `<[id]>`, since `[TOOL_CALLS]` has
        no name there, and the latter as a string. Where calls are `required` there is at least one, and no other
        text; else text, and calls in it once their marker and the first words of a call stand there: `{`, or the name
        of one of the tools. A marker without these is text. Without `parallel` there is one call at most.
        Raises ConstraintError where the format, or a schema in it, cannot be enforced.
        """


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
