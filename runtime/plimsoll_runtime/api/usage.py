"""Counts what a request took, in OpenAI's terms."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from plimsoll_runtime.api.choices import Choice
from plimsoll_runtime.api.generate import Piece
from plimsoll_runtime.api.record import RequestRecord
from plimsoll_runtime.api.schemas.answers import PromptTokensDetails, Usage
from plimsoll_runtime.api.schemas.sampling import SamplingFields


class UsageMeter:
    """Adds up the pieces of one request. A prompt counts once however many answers it gets."""

    def __init__(self, choices: Sequence[Choice], record: RequestRecord) -> None:
        self._first = {c.prompt: c.index for c in reversed(choices)}
        self._prompt_tokens = sum(len(c.request.prompt_token_ids) for c in choices if self._first[c.prompt] == c.index)
        self._completion_tokens = 0
        self._cached_tokens = 0
        self._record = record
        record.prompt_tokens = self._prompt_tokens

    def add(self, piece: Piece, *, counted: bool = True) -> None:
        """Count a piece; its tokens only where `counted` (a prompt that is only scored has an answer to drop)."""
        if counted:
            self._completion_tokens += len(piece.delta.token_ids)
        if self._first[piece.choice.prompt] == piece.choice.index:
            self._cached_tokens += piece.cached_tokens
            self._record.cached_tokens = self._cached_tokens

    def of_event(self, request: SamplingFields) -> Usage | msgspec.UnsetType | None:
        """What an event says before the stream's last one: the usage so far, null, or nothing of it."""
        if not request.include_usage:
            return msgspec.UNSET
        return self.usage() if request.continuous_usage else None

    def usage(self) -> Usage:
        """What was taken so far."""
        return Usage(
            self._prompt_tokens,
            self._completion_tokens,
            self._prompt_tokens + self._completion_tokens,
            PromptTokensDetails(self._cached_tokens),
        )
