"""Checks which outputs a grammar accepts, by walking through it token by token."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tool_support.markers import END, SPECIAL

from plimsoll_runtime.engine.protocol.constraint import Constraint
from plimsoll_runtime.structured.grammar import limits, to_llguidance

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

SpecialId = Callable[[str], int | None]
ENDING = set(b'"}],')
PLAIN = set(b"abgs019{}[]<;\\n`")


class Walk:
    """One output under a grammar, token by token."""

    def __init__(self, source: str, spelling: LLTokenizer, special_id: SpecialId) -> None:
        from llguidance import LLMatcher

        self.special_id = special_id
        self.inner: LLMatcher = LLMatcher(
            spelling, to_llguidance(Constraint.grammar(source)), log_level=0, limits=limits()
        )
        assert not self.inner.is_error(), self.inner.get_error()

    def takes(self, text: str) -> int:
        """Return the number of characters of the text that the grammar accepts."""
        at = 0
        for token, length in spelled(text, self.special_id):
            if not self.inner.consume_token(token):
                return at
            at += length
        return at

    def may_end(self) -> bool:
        return bool(self.inner.is_accepting())

    def allowed(self) -> list[int]:
        mask = self.inner.compute_bitmask()
        return [token for token in range(8 * len(mask)) if mask[token // 8] >> (token % 8) & 1]


def spelled(text: str, special_id: SpecialId) -> list[tuple[int, int]]:
    """Return tokens, each with the number of characters that it completes."""
    found: list[tuple[int, int]] = []
    for piece in re.split("(" + "|".join(map(re.escape, SPECIAL)) + ")", text):
        token = special_id(piece)
        if token is not None:
            found.append((token, len(piece)))
            continue
        for char in piece:
            data = char.encode()
            found += [(byte, 0) for byte in data[:-1]] + [(data[-1], 1)]
    return found


def takes(source: str, text: str, spelling: LLTokenizer, special_id: SpecialId) -> bool:
    """Return whether the grammar accepts the whole text and allows its end there."""
    walk = Walk(source, spelling, special_id)
    return walk.takes(text) == len(text) and walk.may_end()


def wander(walk: Walk, chance: random.Random) -> str:
    """Return a random output that the grammar accepts; letters and digits are less likely than characters that end
    values.
    """
    taken: list[int] = []
    for _ in range(4000):
        allowed = walk.allowed()
        if allowed == [END] or (END in allowed and chance.random() < 0.3):
            break
        ending = [token for token in allowed if token in ENDING] if chance.random() < 0.4 else []
        plain = [token for token in allowed if token in PLAIN or token > END]
        token = chance.choice(ending or plain or [token for token in allowed if token != END])
        assert walk.inner.consume_token(token)
        taken.append(token)
    else:
        raise AssertionError("it does not end")
    return text_of(taken, walk.special_id)


def text_of(tokens: Sequence[int], special_id: SpecialId) -> str:
    return b"".join(bytes([token]) if token < END else SPECIAL[token - END].encode() for token in tokens).decode()
