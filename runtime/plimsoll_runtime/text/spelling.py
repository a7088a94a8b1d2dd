"""How the pieces of a vocabulary spell bytes.

A tokenizer.json says in its `decoder` how pieces become text. Nearly every language model uses one of two ways:
byte-level pieces, where each character stands for one byte, or SentencePiece ones, where "▁" is a space and
"<0xE2>" one byte. For both, text is the concatenation of each piece's bytes, so that it can be decoded token by
token. `read_spelling` answers None for any other decoder.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

SPACE = "▁"
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class Spelling:
    """Turns pieces into bytes. `leading_spaces`: how many are dropped from the start of a whole text."""

    byte_level: bool
    spaces: bool = False
    byte_pieces: bool = False
    leading_spaces: int = 0

    def bytes_of(self, piece: str) -> bytes:
        """The bytes that a piece adds to a text."""
        if self.byte_level:
            alphabet = byte_of_character()
            values = [alphabet.get(character) for character in piece]
            return piece.encode() if None in values else bytes(v for v in values if v is not None)
        if self.byte_pieces and (match := _BYTE_PIECE.fullmatch(piece)):
            return bytes([int(match.group(1), 16)])
        return (piece.replace(SPACE, " ") if self.spaces else piece).encode()


def read_spelling(decoder: Mapping[str, Any] | None) -> Spelling | None:
    """The spelling that the `decoder` of a tokenizer.json describes, or None where bytes cannot express it."""
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
    """The byte that each character of the byte-level alphabet stands for.

    Printable Latin-1 characters stand for themselves, all other bytes for the characters from U+0100 on (GPT-2).
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
