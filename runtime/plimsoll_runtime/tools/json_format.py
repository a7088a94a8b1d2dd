"""Formats whose calls are JSON objects with a name and arguments, between markers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from plimsoll_runtime.tools.answer import AnswerParser, Style
from plimsoll_runtime.tools.grammar import OBJECT, OBJECT_OR_LIST, SpecialId, Wrapping, named, wrapped
from plimsoll_runtime.tools.parts import Tool


@dataclass(frozen=True, slots=True)
class JsonFormat:
    """Such a format. A template has it where all of one of `signs` stand in it; `key` is the arguments' name."""

    name: str
    special: bool
    signs: tuple[tuple[str, ...], ...]
    style: Style
    wrapping: Wrapping
    key: str = "arguments"

    def fits(self, template: str) -> bool:
        """Whether its signs stand in a chat template."""
        return any(all(sign in template for sign in signs) for signs in self.signs)

    def parser(self, tools: Sequence[Tool]) -> AnswerParser:
        """For one answer."""
        return AnswerParser(self.style, tools)

    def grammar(self, tools: Sequence[Tool], special_id: SpecialId, *, required: bool, parallel: bool) -> str:
        """Objects that name a tool and have arguments of its schema."""
        begins = [OBJECT_OR_LIST if self.wrapping.begin == "[" else OBJECT]
        calls = named(tools, self.key)
        return wrapped(calls, self.wrapping, begins, special_id, required=required, parallel=parallel)
