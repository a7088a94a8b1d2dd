"""Converts token ids to text incrementally (returned text never changes), and describes how a vocabulary spells
bytes.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

SPACE = "▁"
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class Spelling:
    """Converts the pieces of a vocabulary to bytes.

    `byte_level`: each character stands for one byte. Otherwise `spaces`: "▁" is a space, and `byte_pieces`: "<0xE2>" is
    one byte. `leading_spaces` is the number of spaces removed from the start of a whole text.
    """

    byte_level: bool
    spaces: bool = False
    byte_pieces: bool = False
    leading_spaces: int = 0

    def bytes_of(self, piece: str) -> bytes:
        """Return the bytes that a piece adds to a text."""
        if self.byte_level:
            alphabet = byte_of_character()
            values = [alphabet.get(character) for character in piece]
            return piece.encode() if None in values else bytes(v for v in values if v is not None)
        if self.byte_pieces and (match := _BYTE_PIECE.fullmatch(piece)):
            return bytes([int(match.group(1), 16)])
        return (piece.replace(SPACE, " ") if self.spaces else piece).encode()


def read_spelling(decoder: Mapping[str, Any] | None) -> Spelling | None:
    """Return the spelling described by the `decoder` of a tokenizer.json, or None if bytes cannot express it.

    Nearly every language model uses one of two spellings: byte-level pieces, where each character stands for one byte,
    or SentencePiece pieces, where "▁" is a space and "<0xE2>" one byte. In both, a text is the concatenation of its
    pieces' bytes, so it can be decoded token by token.
    """
    steps = _steps(decoder)
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"]:
        return Spelling(byte_level=True)
    strip = steps[-1] if kinds and kinds[-1] == "Strip" else None
    body = steps[:-1] if strip else steps
    if not body or body[-1].get("type") != "Fuse" or (strip and (strip.get("content") != " " or strip.get("stop"))):
        return None
    known = {"ByteFallback": False, "Replace": False}
    for step in body[:-1]:
        kind = str(step.get("type"))
        if kind not in known or known[kind] or (kind == "Replace" and not _is_space_step(step)):
            return None
        known[kind] = True
    leading = int(strip["start"]) if strip else 0
    return Spelling(False, known["Replace"], known["ByteFallback"], leading)


@cache
def byte_of_character() -> dict[str, int]:
    """Return the byte for each character of the byte-level alphabet.

    Printable Latin-1 characters stand for themselves, and characters from U+0100 on for all other bytes (GPT-2).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [value for value in range(256) if value not in set(printable)]
    return {chr(v): v for v in printable} | {chr(0x100 + i): v for i, v in enumerate(rest)}


def _steps(decoder: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if not decoder:
        return []
    return list(decoder["decoders"]) if decoder.get("type") == "Sequence" else [decoder]


def _is_space_step(step: Mapping[str, Any]) -> bool:
    return step.get("pattern") == {"String": SPACE} and step.get("content") == " "


REPLACEMENT = "�"
HELD_TOKENS = 16
"""Most tokens that a window holds back while its text ends in U+FFFD; a character has at most 4 bytes."""


class Vocabulary(Protocol):
    """The part of a tokenizer that detokenising needs."""

    @property
    def spelling(self) -> Spelling | None:
        """How pieces spell bytes, or None for decoders that work on whole texts."""

    @property
    def special_ids(self) -> AbstractSet[int]:
        """Ids of tokens that `skip_special_tokens` leaves out."""

    @property
    def special_texts(self) -> Mapping[int, str]:
        """Text of each special token, by id."""

    def holds_special(self, text: str, /) -> bool:
        """Return whether a text contains the text of a special token."""

    def lone_length(self, token_id: int) -> int | None:
        """Return the number of characters that `decode_pieces` returns for one token alone, or None for an
        unknown id.
        """

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token adds to a text, for vocabularies with a spelling."""

    def decode_pieces(self, ids: Sequence[int]) -> str:
        """Return the text of a whole list of ids, including special tokens."""


class Detokenizer(Protocol):
    """Detokenises one text incrementally.

    Bytes of a character that is split over tokens are held until the character is complete, or certain to stay
    incomplete (then U+FFFD replaces them, as in any decoding with replacement). The deltas concatenate to the text of
    all ids, however the ids are split over calls.
    """

    def push(self, token_id: int) -> str:
        """Return the text that this token completes, often ""."""

    def push_all(self, token_ids: Sequence[int]) -> str:
        """Return the text that these tokens complete, as if they were pushed one by one."""

    def finish(self) -> str:
        """Return the text that is still held. No tokens may follow."""


def new_detokenizer(vocabulary: Vocabulary, *, skip_special_tokens: bool = True, at_start: bool = False) -> Detokenizer:
    """Return a detokenizer for this vocabulary.

    `at_start`: the ids are a whole text rather than the continuation of a prompt, so the space that SentencePiece adds
    before the first word is removed.
    """
    if vocabulary.spelling is None:
        return WindowDetokenizer(vocabulary, skip_special_tokens)
    return ByteDetokenizer(vocabulary, skip_special_tokens, vocabulary.spelling.leading_spaces if at_start else 0)


class ByteDetokenizer:
    """For vocabularies with a spelling: constant work per token."""

    def __init__(self, vocabulary: Vocabulary, skip_special_tokens: bool, leading_spaces: int) -> None:
        self._bytes_of = vocabulary.token_bytes
        self._skipped = vocabulary.special_ids if skip_special_tokens else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._spaces_to_drop = leading_spaces

    def push(self, token_id: int) -> str:
        if token_id in self._skipped:
            return ""
        return self._started(self._decoder.decode(self._bytes_of(token_id)))

    def push_all(self, token_ids: Sequence[int]) -> str:
        spelled = b"".join([self._bytes_of(token_id) for token_id in token_ids if token_id not in self._skipped])
        return self._started(self._decoder.decode(spelled))

    def finish(self) -> str:
        """Return U+FFFD for an incomplete character, else ""."""
        return self._started(self._decoder.decode(b"", final=True))

    def _started(self, text: str) -> str:
        while self._spaces_to_drop and text:
            if text[0] != " ":
                self._spaces_to_drop = 0
                break
            self._spaces_to_drop -= 1
            text = text[1:]
        return text


class WindowDetokenizer:
    """For other decoders: decodes a window of the last tokens with and without the new one, and returns the difference.

    The window starts at a token whose text has been returned, so that effects at the start of a text (such as joining
    words with spaces) are the same in both decodings.
    """

    def __init__(self, vocabulary: Vocabulary, skip_special_tokens: bool) -> None:
        self._decode = vocabulary.decode_pieces
        self._lone_length = vocabulary.lone_length
        self._skipped = vocabulary.special_ids if skip_special_tokens else frozenset()
        self._window: list[int] = []
        self._given = 0

    def push(self, token_id: int) -> str:
        if token_id in self._skipped or self._lone_length(token_id) is None:
            return ""
        self._window.append(token_id)
        text = self._decode(self._window)
        if text.endswith(REPLACEMENT) and len(self._window) - self._given < HELD_TOKENS:
            return ""
        return self._advance(text)

    def push_all(self, token_ids: Sequence[int]) -> str:
        """Return the text that these tokens complete. If a character may be split, push the tokens one by one."""
        shown = [token for token in token_ids if token not in self._skipped and self._lone_length(token) is not None]
        if len(shown) > 1 and REPLACEMENT not in (text := self._decode([*self._window, *shown])):
            self._window += shown
            return self._advance(text)
        return "".join(map(self.push, shown))

    def finish(self) -> str:
        held = len(self._window) > self._given
        return self._advance(self._decode(self._window)) if held else ""

    def _advance(self, text: str) -> str:
        before = self._given_length()
        del self._window[: self._given]
        self._given = len(self._window)
        return text[before:]

    def _given_length(self) -> int:
        """Return the number of the window's characters that have been returned, nearly always those of one token."""
        length = self._lone_length(self._window[0]) if self._given == 1 else None
        if length is None:
            length = len(self._decode(self._window[: self._given])) if self._given else 0
        return length


def detokenize(
    vocabulary: Vocabulary, ids: Iterable[int], *, skip_special_tokens: bool = True, at_start: bool = True
) -> str:
    """Return the text of all ids."""
    detokenizer = new_detokenizer(vocabulary, skip_special_tokens=skip_special_tokens, at_start=at_start)
    return "".join([*map(detokenizer.push, ids), detokenizer.finish()])
