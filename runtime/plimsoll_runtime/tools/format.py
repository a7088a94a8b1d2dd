"""What a model's own way to write calls has to say of itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from plimsoll_runtime.tools.parts import Part, Tool


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
