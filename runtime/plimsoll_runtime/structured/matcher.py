"""Where one sequence is in its grammar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from plimsoll_runtime.structured.grammar import told

if TYPE_CHECKING:
    from llguidance import LLMatcher


class Matcher:
    """Takes a sequence's tokens one by one. `inner` is llguidance's, for masks of many at once."""

    __slots__ = ("inner",)

    def __init__(self, inner: LLMatcher) -> None:
        self.inner = inner

    def take(self, token: int) -> None:
        """The sequence has got a token; one that the grammar forbids puts the matcher into error."""
        self.inner.consume_token(token)

    def take_all(self, tokens: Sequence[int]) -> None:
        """The same for what a sequence had before it was put off."""
        if tokens:
            self.inner.consume_tokens(list(tokens))

    @property
    def error(self) -> str | None:
        """Why there is no next token: the grammar takes too much work here, say. None: there is."""
        return told(self.inner.get_error()) if self.inner.is_error() else None
