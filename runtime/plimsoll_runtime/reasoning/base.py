"""What a model's own way to write thoughts has to say of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from plimsoll_runtime.tools.base import Part


@dataclass(frozen=True, slots=True)
class Marks:
    """What stands around a thought, as text: `begin` before it, `end` behind it.

    - `closing` is what ends a thought whose budget is used up. One of `then` follows it, the first where no tool may be
      called.
    - `gap` stands between a thought and an answer that is kept to a schema or another form.
    - `implied`: texts that end a thought, too, and are part of what follows it (a call, say).
    - `anywhere`: thoughts may begin anywhere in an answer, and not only where it begins.
    - `answer`: the texts, one after the other, behind which the answer proper begins. None: it is all that is no
      thought.
    - `steer`: before an answer that is kept to a form, this text may be followed by one of these alone, so that the
      model thinks or answers, and says nothing else first.
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
    """Reads one answer as it grows."""

    def push(self, text: str) -> Sequence[Part]:
        """What more text says: `Reasoning` and `Text`. What may be the beginning of a marker is held back."""

    def finish(self) -> Sequence[Part]:
        """The answer has ended: what was held back and is no marker after all."""


class ReasoningFormat(Protocol):
    """A format."""

    @property
    def name(self) -> str:
        """How a user names it."""

    @property
    def marks(self) -> Marks:
        """What engines need to know of it, to bound thoughts and to keep answers to schemas behind them."""

    @property
    def efforts(self) -> Sequence[str] | None:
        """The values of `reasoning_effort` that models of it have learnt; None where the template says so."""

    def fits(self, template: str) -> bool:
        """Whether a chat template (Jinja) renders thoughts in this format."""

    def opened_by(self, prompt: str) -> bool:
        """Whether a prompt ends within a thought."""

    def shown(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """An earlier message, whose thoughts are in `reasoning_content`, as templates of this format know it."""

    def parser(self, *, opened: bool) -> ReasoningParser:
        """For one answer, whose prompt has `opened` a thought or not."""
