"""Log probabilities in the three formats of the API: chat, completions, and whole prompts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import msgspec

from plimsoll_runtime.api.schemas.outputs import (
    ChatLogprob,
    ChatLogprobs,
    CompletionLogprobs,
    PromptLogprobs,
    TopLogprob,
)
from plimsoll_runtime.engine.protocol.messages import LogprobEntry, unpack
from plimsoll_runtime.text.detokenizer import new_detokenizer
from plimsoll_runtime.text.tokenizer import Tokenizer

LOWEST = -9999.0
"""Replaces minus infinity, which JSON does not have."""

_encode = msgspec.json.Encoder().encode


def chat_logprobs(entries: Sequence[LogprobEntry], tokenizer: Tokenizer) -> ChatLogprobs:
    """Return log probabilities in the format of chat completions."""
    return ChatLogprobs([_chat_token(entry, tokenizer) for entry in entries])


def prompt_logprobs(packed: Sequence[bytes], tokenizer: Tokenizer) -> PromptLogprobs:
    """Return one entry for each token of a prompt: None for the first; for each other one a JSON object of log
    probabilities by token id, of the likeliest tokens and the prompt's own."""
    return [None, *(_by_token(entry, tokenizer) for entry in unpack(packed))]


class CompletionLogprobsBuilder:
    """Builds log probabilities in the format of the legacy completions, chunk by chunk; text offsets continue across
    chunks."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool, echoed: int = 0) -> None:
        """`echoed` is the number of characters of the prompt that precede the output."""
        self._tokenizer = tokenizer
        self._detokenizer = new_detokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
        self._offset = echoed

    def prompt(self, ids: Sequence[int], packed: Sequence[bytes], starts: Sequence[int]) -> CompletionLogprobs:
        """Return the log probabilities of an echoed prompt; the first token has none. `packed` has an entry for each
        other token, and `starts` the index of each token's first character."""
        built = CompletionLogprobs([], [], [], [])
        for token_id, start, entry in zip(ids, starts, chain([None], unpack(packed)), strict=True):
            self._add(built, token_id, start, entry)
        return built

    def answer(self, ids: Sequence[int], entries: Sequence[LogprobEntry]) -> CompletionLogprobs:
        """Return the log probabilities of the next generated tokens."""
        built = CompletionLogprobs([], [], [], [])
        for token_id, entry in zip(ids, entries, strict=True):
            self._add(built, token_id, self._offset, entry)
            self._offset += len(self._detokenizer.push(token_id))
        return built

    def _add(self, built: CompletionLogprobs, token_id: int, offset: int, entry: LogprobEntry | None) -> None:
        built.text_offset.append(offset)
        built.tokens.append(self._tokenizer.token_text(token_id))
        built.token_logprobs.append(None if entry is None else _floor(entry.logprob))
        built.top_logprobs.append(None if entry is None else self._top(entry))

    def _top(self, entry: LogprobEntry) -> msgspec.Raw:
        top: dict[str, float] = {}
        for token_id, logprob in [*entry.top, (entry.token_id, entry.logprob)]:
            top.setdefault(self._tokenizer.token_text(token_id), _floor(logprob))
        return msgspec.Raw(_encode(top))


def joined(parts: Sequence[CompletionLogprobs]) -> CompletionLogprobs:
    """Concatenate several chunks."""
    return CompletionLogprobs(
        [offset for part in parts for offset in part.text_offset],
        [logprob for part in parts for logprob in part.token_logprobs],
        [token for part in parts for token in part.tokens],
        [top for part in parts for top in part.top_logprobs],
    )


def _chat_token(entry: LogprobEntry, tokenizer: Tokenizer) -> ChatLogprob:
    top = [
        TopLogprob(tokenizer.token_text(token_id), _floor(logprob), list(tokenizer.token_bytes(token_id)))
        for token_id, logprob in entry.top
    ]
    return ChatLogprob(
        tokenizer.token_text(entry.token_id),
        _floor(entry.logprob),
        list(tokenizer.token_bytes(entry.token_id)),
        top,
    )


def _by_token(entry: LogprobEntry, tokenizer: Tokenizer) -> msgspec.Raw:
    ranked = {token_id: (rank, logprob) for rank, (token_id, logprob) in enumerate(entry.top, start=1)}
    ranked[entry.token_id] = (entry.rank, entry.logprob)
    told = {
        str(token_id): {"logprob": _floor(logprob), "rank": rank, "decoded_token": tokenizer.token_text(token_id)}
        for token_id, (rank, logprob) in ranked.items()
    }
    return msgspec.Raw(_encode(told))


def _floor(logprob: float) -> float:
    return max(logprob, LOWEST)
