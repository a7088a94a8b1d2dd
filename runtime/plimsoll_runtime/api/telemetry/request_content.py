"""The beginning of a request's prompts and outputs, for spans, if traces may have content."""

from __future__ import annotations

import msgspec

MOST_BYTES = 4096
"""Bytes of all prompts of a request, and of all its outputs."""


class RequestContent:
    """Collects the beginning of prompts and outputs, at most MOST_BYTES of each in UTF-8."""

    def __init__(self) -> None:
        self._prompts: list[str] = []
        self._outputs: dict[int, list[str]] = {}
        self._prompt_left = self._output_left = MOST_BYTES

    @property
    def wants_prompt(self) -> bool:
        """Whether another prompt would be kept, at least its beginning."""
        return self._prompt_left > 0

    def add_prompt(self, text: str) -> None:
        """Add a prompt."""
        kept, self._prompt_left = _taken(text, self._prompt_left)
        if kept:
            self._prompts.append(kept)

    def add_output(self, choice: int, text: str) -> None:
        """Add a piece of a choice's output."""
        kept, self._output_left = _taken(text, self._output_left)
        if kept:
            self._outputs.setdefault(choice, []).append(kept)

    def input_messages(self) -> str:
        """Return the prompts as the JSON of the convention's messages; "" without any."""
        return _messages("user", self._prompts)

    def output_messages(self) -> str:
        """Return the outputs as the JSON of the convention's messages, in the order of the choices; "" without any."""
        return _messages("assistant", ["".join(parts) for _, parts in sorted(self._outputs.items())])


def beginning(text: str, size: int) -> str:
    """Return the longest beginning of a text that takes at most `size` bytes in UTF-8.

    Characters that UTF-8 cannot encode are replaced.
    """
    return text[:size].encode(errors="replace")[:size].decode(errors="ignore")


def _taken(text: str, left: int) -> tuple[str, int]:
    """Return what is kept of a text, and the bytes that are left after it: none after a text that was cut."""
    kept = beginning(text, left)
    return kept, left - len(kept.encode()) if len(kept) == len(text) else 0


def _messages(role: str, texts: list[str]) -> str:
    if not texts:
        return ""
    found = [{"role": role, "parts": [{"type": "text", "content": text}]} for text in texts]
    return msgspec.json.encode(found).decode()
