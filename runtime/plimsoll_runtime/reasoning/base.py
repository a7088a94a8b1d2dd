"""Interfaces of reasoning formats and their parsers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from plimsoll_runtime.tools.base import Part


@dataclass(frozen=True, slots=True)
class Marks:
    """Texts around reasoning: `begin` before it, `end` after it.

    - `closing` ends reasoning whose budget is used up. One of `then` must follow it; if no tool may be called, the
      first.
    - `gap` separates reasoning from an output with a constraint.
    - `implied`: texts that also end reasoning and belong to the following part (such as a tool call).
    - `anywhere`: reasoning may begin anywhere in an output, not only at its start.
    - `answer`: texts in order, after the last of which the output for the user begins. None: everything outside
      reasoning is output for the user.
    - `steer`: before an output with a constraint, only one of these texts may follow this text, so that the model
      starts with reasoning or with the output.
    """

    begin: str
    end: str
    closing: str
    then: tuple[str, ...] = ()
    gap: str = ""
    implied: tuple[str, ...] = ()
    anywhere: bool = False
    answer: tuple[str, ...] | None = None
    steer: tuple[str, tuple[str, ...]] | None = None


class ReasoningParser(Protocol):
    """Parses one output as it grows."""

    def push(self, text: str) -> Sequence[Part]:
        """Parse more text, and return `Reasoning` and `Text` parts. A possible start of a marker is held back."""

    def finish(self) -> Sequence[Part]:
        """End the output, and return text that was held back but is no marker."""


class ReasoningFormat(Protocol):
    """A format in which models write reasoning."""

    @property
    def name(self) -> str:
        """The format's name for users."""

    @property
    def marks(self) -> Marks:
        """The texts that engines need to limit reasoning, and to apply constraints to the output after it."""

    @property
    def efforts(self) -> Sequence[str] | None:
        """Values of `reasoning_effort` that models of this format support; None if the chat template decides."""

    def fits(self, template: str) -> bool:
        """Return whether a chat template (Jinja) uses this format."""

    def opened_by(self, prompt: str) -> bool:
        """Return whether a prompt ends within reasoning."""

    def shown(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return an earlier message, whose reasoning is in `reasoning_content`, with the fields that templates of this
        format use.
        """

    def parser(self, *, opened: bool) -> ReasoningParser:
        """Return a parser for one output. `opened`: the prompt ends within reasoning."""
