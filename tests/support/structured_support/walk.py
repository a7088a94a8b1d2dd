"""Random documents that a grammar accepts."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

from plimsoll_runtime.engine.protocol.constraint import Constraint
from plimsoll_runtime.engine.protocol.messages import Vocabulary
from plimsoll_runtime.structured.grammar import limits, to_llguidance
from plimsoll_runtime.structured.vocabulary import compiled

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

END = 256
_MOST = 600
_LIKELY = frozenset(b'"]},:0123abc')
"""Characters that end or separate values, and a few that occur within them."""


def documents(constraint: Constraint, count: int, chance: random.Random) -> Iterator[str]:
    """Return at most `count` documents; walks that do not end are dropped."""
    from llguidance import LLMatcher

    template = LLMatcher(_bytes(), to_llguidance(constraint), log_level=0, limits=limits())
    assert not template.is_error(), template.get_error()
    for _ in range(count):
        found = _walked(template.deep_copy(), chance)
        if found is not None:
            yield found


def takes(constraint: Constraint, text: str) -> bool:
    """Return whether the grammar accepts the whole text."""
    from llguidance import LLMatcher

    matcher = LLMatcher(_bytes(), to_llguidance(constraint), log_level=0, limits=limits())
    return matcher.try_consume_tokens(list(text.encode())) == len(text.encode()) and bool(matcher.is_accepting())


def _walked(matcher: LLMatcher, chance: random.Random) -> str | None:
    taken = bytearray()
    while len(taken) < _MOST:
        mask = matcher.compute_bitmask()
        assert not matcher.is_error(), matcher.get_error()
        allowed = [token for token in range(END + 1) if mask[token // 8] >> (token % 8) & 1]
        more = [token for token in allowed if token != END]
        if END in allowed and (not more or chance.random() < 0.7):
            return taken.decode()
        likely = [token for token in more if token in _LIKELY] if chance.random() < 0.85 else []
        token = chance.choice(likely or more)
        assert matcher.consume_token(token)
        taken.append(token)
    return None


@cache
def _bytes() -> LLTokenizer:
    pieces = [bytes([byte]) for byte in range(END)] + [b"</s>"]
    return compiled(Vocabulary(b"".join(pieces), array("I", map(len, pieces)).tobytes(), [END], [END]))
