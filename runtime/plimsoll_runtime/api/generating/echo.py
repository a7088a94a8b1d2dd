"""Prompts that an answer repeats (`echo`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from plimsoll_runtime.text.detokenizer import new_detokenizer
from plimsoll_runtime.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Echo:
    """The text that is repeated, and for each token of the prompt the character of the text at which it begins."""

    text: str
    starts: Sequence[int]


def echo_of_text(text: str, tokenizer: Tokenizer, *, add_special_tokens: bool) -> Echo:
    """A prompt that was given as a text. Special tokens that are written in it are part of the text."""
    return Echo(text, tokenizer.starts(text, add_special_tokens=add_special_tokens))


def echo_of_tokens(ids: Sequence[int], tokenizer: Tokenizer, *, skip_special_tokens: bool) -> Echo:
    """A prompt that was given as token ids, or was cut."""
    detokenizer = new_detokenizer(tokenizer, skip_special_tokens=skip_special_tokens, at_start=True)
    starts, pieces, length = list[int](), list[str](), 0
    for token_id in ids:
        starts.append(length)
        pieces.append(detokenizer.push(token_id))
        length += len(pieces[-1])
    return Echo("".join([*pieces, detokenizer.finish()]), starts)
