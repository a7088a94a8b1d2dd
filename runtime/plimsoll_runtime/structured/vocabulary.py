"""The bytes of a model's tokens, in a form that can be sent to the engine process and read outside its main thread."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from plimsoll_runtime.engine.protocol.constraint import ConstraintError
from plimsoll_runtime.engine.protocol.messages import Vocabulary
from plimsoll_runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer


_SLICE = r'[^"\\\x00-\x1F\x7F]{1,30}'
"""Tokens that may occur anywhere in a JSON string are handled as one set. Otherwise a mask within a string visits the
whole vocabulary (0.4 to 2 ms for 262,144 tokens instead of 0.04 to 0.06).
"""


def vocabulary_of(tokenizer: Tokenizer, size: int, end_ids: Sequence[int]) -> Vocabulary:
    """Return the vocabulary of a tokenizer for `size` logits; `end_ids` are the EOS tokens. Takes tenths of a second
    for 262,144 tokens.

    Raises ConstraintError for a tokenizer whose pieces do not spell bytes one by one, and for a model without EOS
    token.
    """
    if tokenizer.spelling is None:
        raise ConstraintError("this model does not support constraints: its tokenizer decodes only whole texts")
    ends = sorted(end for end in end_ids if end < size)
    if not ends:
        raise ConstraintError("this model does not support constraints: no token of its vocabulary is an EOS token")
    pieces = [tokenizer.token_bytes(token) for token in range(min(size, tokenizer.vocab_size))]
    lengths = array("I", map(len, pieces))
    lengths.extend([0] * (size - len(pieces)))
    special = sorted(token for token in tokenizer.special_ids if token < size)
    return Vocabulary(b"".join(pieces), lengths.tobytes(), special, ends)


def compiled(vocabulary: Vocabulary) -> LLTokenizer:
    """Return llguidance's tables of a vocabulary: 0.7 s for 262,144 tokens, during which no other Python code runs."""
    from llguidance import LLTokenizer

    source: Any = _Source(vocabulary)
    return LLTokenizer(source, n_vocab=len(source.tokens), eos_token=vocabulary.end_ids, slices=[_SLICE])


class TokenBytes:
    """The bytes of each token; empty for ids outside the vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        lengths = array("I")
        lengths.frombytes(vocabulary.lengths)
        self._spelled = vocabulary.spelled
        self._ends = array("Q", accumulate(lengths))

    def __len__(self) -> int:
        return len(self._ends)

    def __call__(self, token: int) -> bytes:
        """Return the bytes of a token."""
        if token >= len(self._ends):
            return b""
        return self._spelled[self._ends[token - 1] if token else 0 : self._ends[token]]


class _Source:
    """The tokenizer interface that `LLTokenizer` expects."""

    is_tokenizer_wrapper = True

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = _split(vocabulary)
        self.eos_token_id = vocabulary.end_ids[0]
        self.bos_token_id = None
        self.special_token_ids = vocabulary.special_ids

    def __call__(self, text: str) -> list[int]:
        """Never called, because grammars force no tokens. Raises AssertionError."""
        raise AssertionError(f"a grammar wants {text!r} to be tokenised")


def _split(vocabulary: Vocabulary) -> list[bytes]:
    piece = TokenBytes(vocabulary)
    return [piece(token) for token in range(len(piece))]
