"""Splits one output of a chat into reasoning, text for the user and tool calls, while it grows."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from plimsoll_runtime.api.chat.reasoning import Thinking
from plimsoll_runtime.api.chat.tools import ToolUse
from plimsoll_runtime.text.output import TextDelta
from plimsoll_runtime.tools.arguments import is_whole
from plimsoll_runtime.tools.base import Arguments, CallBegins, Part, Reasoning, Text


@dataclass(slots=True)
class Call:
    """A tool call while it grows. `is_cut`: the output has ended before the arguments were complete."""

    name: str
    id: str = field(default_factory=lambda: f"call_{uuid.uuid4().hex[:24]}")
    arguments: list[str] = field(default_factory=list)
    is_cut: bool = False


class AnswerReader:
    """Reads one output and collects its parts. Without tools and without reasoning, all text is for the user."""

    def __init__(self, called: ToolUse | None, thinking: Thinking | None = None) -> None:
        self._called = called
        self._reasoning = None if thinking is None else thinking.format.parser(opened=thinking.opened)
        self._tools = None if called is None else called.format.parser(called.callable)
        self._words: list[str] = []
        self._thoughts: list[str] = []
        self._last: TextDelta | None = None
        self.calls: list[Call] = []

    def push(self, delta: TextDelta) -> Sequence[Part]:
        """Return the parts that a step adds. The delta with a finish reason is the last."""
        self._last = delta
        is_last = delta.finish_reason is not None
        parts = self._parts(delta.text, last=is_last)
        for part in parts:
            if isinstance(part, Text):
                self._words.append(part.text)
            elif isinstance(part, Reasoning):
                self._thoughts.append(part.text)
            elif isinstance(part, CallBegins):
                self.calls.append(Call(part.name))
            elif isinstance(part, Arguments):
                self.calls[part.index].arguments.append(part.text)
        if is_last:
            for call in self.calls:
                call.is_cut = not is_whole("".join(call.arguments))
        return parts

    def _parts(self, text: str, *, last: bool) -> Sequence[Part]:
        """Return the parts of more text: reasoning is split off first, then tool calls."""
        parts: Sequence[Part] = (Text(text),) if text else ()
        if self._reasoning is not None:
            parts = [*(self._reasoning.push(text) if text else ()), *(self._reasoning.finish() if last else ())]
        if self._tools is None:
            return parts
        found: list[Part] = []
        for part in parts:
            found += self._tools.push(part.text) if isinstance(part, Text) else (part,)
        return [*found, *self._tools.finish()] if last else found

    @property
    def thoughts(self) -> str:
        """The reasoning so far."""
        return "".join(self._thoughts)

    @property
    def words(self) -> str:
        """The text for the user so far."""
        return "".join(self._words)

    @property
    def old(self) -> bool:
        """Whether calls are reported in OpenAI's deprecated fields."""
        return self._called is not None and self._called.old

    @property
    def begun(self) -> bool:
        """Whether any step has been added, even one with empty text."""
        return self._last is not None

    @property
    def finish_reason(self) -> str | None:
        """OpenAI's finish reason. It is `tool_calls` (or `function_call`) if the output ended by itself with a complete
        call, unless the client had named the tool to call."""
        reason = self._ended.finish_reason
        if reason != "stop" or not self.ends_by_calls or self._called is None or self._called.by_name:
            return reason
        return "function_call" if self.old else "tool_calls"

    @property
    def ends_by_calls(self) -> bool:
        """Whether there are tool calls and the last one is complete. Known once the output has ended."""
        return bool(self.calls) and not self.calls[-1].is_cut

    @property
    def stop_reason(self) -> str | int | None:
        """The stop string or token id that ended the output; None for another end."""
        return self._ended.stop_reason

    @property
    def _ended(self) -> TextDelta:
        assert self._last is not None, "an answer has at least one piece"
        return self._last
