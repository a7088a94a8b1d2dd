"""Prompts of which only the last tokens are wanted (`truncate_prompt_tokens`)."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll_runtime.api.schemas.sampling import SamplingFields
from plimsoll_runtime.api.served import ServedModel
from plimsoll_runtime.engine.limits import longest_sequence

MARGIN = 64
"""Tokens by which a text that is cut is longer than what is wanted of it: where it begins, others come out."""


@dataclass(frozen=True, slots=True)
class Truncation:
    """How many tokens are kept at most, None for all; `piece`: characters of the longest token."""

    most: int | None
    piece: int

    def text(self, text: str) -> str:
        """The end of a text that is certainly long enough: the rest need not be tokenised."""
        return text if self.most is None else text[-(self.most + MARGIN) * self.piece :]

    def ids(self, ids: list[int]) -> list[int]:
        """The tokens that are kept."""
        return ids if self.most is None else ids[-self.most :]


def truncation_of(body: SamplingFields, model: ServedModel, max_tokens: int | None) -> Truncation:
    """What a request wants; with -1 as many tokens as the context has room for beside the answer's `max_tokens`."""
    wanted = body.truncate_prompt_tokens
    if wanted is not None and wanted < 0:
        wanted = max(1, longest_sequence(model.engine.info) - max(1, max_tokens or 1))
    return Truncation(wanted, model.tokenizer.longest_piece)
