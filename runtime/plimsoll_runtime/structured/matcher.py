"""Compiled grammars of a model, and the position of a sequence in its grammar."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from plimsoll_runtime.engine.protocol.constraint import Constraint, ConstraintError
from plimsoll_runtime.engine.protocol.messages import Vocabulary
from plimsoll_runtime.structured.grammar import limits, readable_error, to_llguidance
from plimsoll_runtime.structured.vocabulary import TokenBytes, compiled

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MOST_WARMTH = 128
"""Number of tokens after which a matcher returns its lexer states to the template for the last time. By then most
lexers have found all their states (some 200 of the 10,000 that `grammar.limits` allows a sequence). Stored states count
against the limit of each later sequence.
"""


class Template:
    """A compiled grammar, from which each sequence gets its own matcher.

    llguidance finds the states of a grammar's lexer as it reaches them, separately in each matcher: the first masks of
    a new matcher take ten times as long as later ones. Therefore sequences return the states that their matchers have
    found.
    """

    def __init__(self, inner: LLMatcher) -> None:
        """`inner` has consumed no tokens. Its first mask is computed here, so that no step waits for it."""
        first = inner.deep_copy()
        first.compute_bitmask()
        self._kept = (
            inner if first.is_error() else first,
            0,
        )  # one tuple, because engines and mask threads read it concurrently

    @property
    def warmth(self) -> int:
        """Number of tokens that matchers, one after the other, consumed to find the lexer states stored here."""
        return self._kept[1]

    def matcher(self) -> Matcher:
        """Return a matcher that has consumed no tokens."""
        inner, warmth = self._kept
        return Matcher(inner.deep_copy(), self, warmth)

    def learn(self, inner: LLMatcher, warmth: int) -> None:
        """Store a copy of a matcher's states if it has consumed more tokens. The matcher itself does not change."""
        if warmth > self.warmth and not inner.is_error():
            copy = inner.deep_copy()
            copy.reset()
            self._kept = copy, warmth


class Matcher:
    """Consumes a sequence's tokens one by one. `inner` is llguidance's matcher, for batched masks."""

    __slots__ = ("_template", "_warmth", "inner")

    def __init__(self, inner: LLMatcher, template: Template, warmth: int = 0) -> None:
        self.inner = inner
        self._template = template
        self._warmth = warmth

    def take(self, token: int) -> None:
        """Consume the sequence's next token. A token that the grammar forbids puts the matcher into an error state."""
        self.inner.consume_token(token)
        self._warmth += 1
        if self._warmth == MOST_WARMTH:
            self._template.learn(self.inner, self._warmth)

    def take_all(self, tokens: Sequence[int]) -> None:
        """Consume the tokens that a sequence had before it was preempted."""
        if tokens:
            self.inner.consume_tokens(list(tokens))
            self._warmth += len(tokens)

    def leave(self) -> None:
        """Return the lexer states to the template, when the sequence ends or is preempted."""
        if self._warmth < MOST_WARMTH:
            self._template.learn(self.inner, self._warmth)

    @property
    def error(self) -> str | None:
        """Why there is no next token (for example, the grammar takes too much work), or None."""
        return readable_error(self.inner.get_error()) if self.inner.is_error() else None


MOST_KEPT = 256
"""Number of compiled grammars that are kept, the most recently used ones."""


class Grammars:
    """Compiles grammars in a separate thread and keeps the most recent ones. llguidance is imported for the first one.

    Thread-safe: the thread that queues requests calls `prepare`, the one that computes takes matchers.
    """

    def __init__(self) -> None:
        self._vocabulary: Vocabulary | None = None
        self._spelled: TokenBytes | None = None
        self._tokenizer: LLTokenizer | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._kept: OrderedDict[Constraint, Future[Template]] = OrderedDict()
        self._lock = threading.Lock()

    def use(self, vocabulary: Vocabulary) -> None:
        """Set the vocabulary for compiling. Later calls have no effect."""
        self._vocabulary = self._vocabulary or vocabulary

    def prepare(self, constraint: Constraint) -> Future[Template]:
        """Start compiling, unless the grammar is compiled or being compiled. On failure the future raises
        ConstraintError.
        """
        with self._lock:
            found = self._kept.get(constraint)
            if found is None:
                self._pool = self._pool or ThreadPoolExecutor(1, "plimsoll-grammars")
                found = self._kept[constraint] = self._pool.submit(self._compile, constraint)
                self._drop_oldest()
            self._kept.move_to_end(constraint)
            return found

    def matcher(self, constraint: Constraint) -> Matcher:
        """Return a matcher that has consumed no tokens. Waits for compilation if necessary; raises ConstraintError."""
        return self.prepare(constraint).result().matcher()

    def spelled(self) -> TokenBytes:
        """Return the bytes of each token. Raises ConstraintError if no vocabulary was set."""
        self._spelled = self._spelled or TokenBytes(self._told())
        return self._spelled

    def ends(self) -> Sequence[int]:
        """Return the EOS tokens. Raises ConstraintError if no vocabulary was set."""
        return self._told().end_ids

    def _told(self) -> Vocabulary:
        if self._vocabulary is None:
            raise ConstraintError("the engine has no vocabulary for constraints")
        return self._vocabulary

    def _compile(self, constraint: Constraint) -> Template:
        from llguidance import LLMatcher

        if self._tokenizer is None:
            self._tokenizer = compiled(self._told())
        matcher = LLMatcher(self._tokenizer, to_llguidance(constraint), log_level=0, limits=limits())
        if matcher.is_error():
            raise ConstraintError(readable_error(matcher.get_error()))
        return Template(matcher)

    def _drop_oldest(self) -> None:
        over = len(self._kept) - MOST_KEPT
        for constraint in [c for c, found in self._kept.items() if found.done()][: max(0, over)]:
            del self._kept[constraint]
