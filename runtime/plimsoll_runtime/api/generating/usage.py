"""Counts what a request took, in OpenAI's terms."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import UNSET, UnsetType

from plimsoll_runtime.api.generating.choices import Choice
from plimsoll_runtime.api.generating.pieces import Piece
from plimsoll_runtime.api.schemas.answers import CompletionTokensDetails, PromptTokensDetails, Usage
from plimsoll_runtime.api.schemas.sampling import StreamOptions
from plimsoll_runtime.text.reasoning_budget import Thoughts


def _nothing(token: int) -> bytes:
    return b""


class UsageMeter:
    """Adds up the pieces of one request. A prompt counts once however many answers it gets. Answers that are not
    `counted` are dropped: their prompts are only scored.
    """

    def __init__(
        self, choices: Sequence[Choice], spell: Callable[[int], bytes] = _nothing, *, counted: bool = True
    ) -> None:
        """`spell` gives a token's bytes, by which thoughts are told from answers."""
        self._first = {c.prompt: c.index for c in reversed(choices)}
        self._counted = counted
        self.prompt_tokens = sum(len(c.request.prompt_token_ids) for c in choices if self._first[c.prompt] == c.index)
        self.completion_tokens = 0
        self.cached_tokens = 0
        self._thoughts = {
            c.index: Thoughts(c.request.params.thought, spell)
            for c in choices
            if c.request.params.thought is not None and counted
        }

    @property
    def reasoning_tokens(self) -> int | None:
        """How many of the generated tokens were thoughts, with what marks them; None where the model writes none."""
        return sum(thoughts.tokens for thoughts in self._thoughts.values()) if self._thoughts else None

    def add(self, piece: Piece) -> None:
        """Count a piece."""
        if self._counted:
            self.completion_tokens += len(piece.delta.token_ids)
        if (thoughts := self._thoughts.get(piece.choice.index)) is not None:
            for token in piece.delta.token_ids:
                thoughts.take(token)
        if self._first[piece.choice.prompt] == piece.choice.index:
            self.cached_tokens += piece.cached_tokens

    def of_event(self, options: StreamOptions | None) -> Usage | UnsetType | None:
        """What an event says before the stream's last one: the usage so far, null, or nothing of it. (As in vLLM,
        `continuous_usage_stats` has an effect only with `include_usage`.)
        """
        if options is None or not options.include_usage:
            return UNSET
        return self.usage() if options.continuous_usage_stats else None

    def usage(self) -> Usage:
        """What was taken so far."""
        return Usage(
            self.prompt_tokens,
            self.completion_tokens,
            self.prompt_tokens + self.completion_tokens,
            PromptTokensDetails(self.cached_tokens),
            UNSET if self.reasoning_tokens is None else CompletionTokensDetails(self.reasoning_tokens),
        )
