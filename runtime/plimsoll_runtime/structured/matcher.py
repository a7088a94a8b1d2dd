"""Compiled grammars of a model, and the position of a sequence in one."""

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
"""Tokens. What most grammars know of their lexers does not grow any more by then (some 200 states of the 10,000 that
`grammar.limits` leaves each sequence); one whose states never end has so many tokens' worth of them less."""


class Template:
    """A compiled grammar, from which each sequence gets a matcher of its own.

    llguidance finds out the states of a grammar's lexer when it comes to them, in each matcher anew: the first masks of
    a fresh one take ten times as long as later ones. So a sequence leaves here what its matcher knows.
    """

    def __init__(self, inner: LLMatcher) -> None:
        """`inner` has taken nothing. Its first mask is computed here, not when a step waits for it."""
        first = inner.deep_copy()
        first.compute_bitmask()
        self._kept = (inner if first.is_error() else first, 0)  # in one piece: engines and mask threads read it

    @property
    def warmth(self) -> int:
        """Tokens that have been taken by the matchers whose knowledge is here, one after the other."""
        return self._kept[1]

    def matcher(self) -> Matcher:
        """One that has taken nothing yet."""
        inner, warmth = self._kept
        return Matcher(inner.deep_copy(), self, warmth)

    def learn(self, inner: LLMatcher, warmth: int) -> None:
        """Keep what a matcher knows, if it is more. The matcher goes on as it is."""
        if warmth > self.warmth and not inner.is_error():
            copy = inner.deep_copy()
            copy.reset()
            self._kept = copy, warmth


class Matcher:
    """Takes a sequence's tokens one by one. `inner` is llguidance's, for masks of many at once."""

    __slots__ = ("_template", "_warmth", "inner")

    def __init__(self, inner: LLMatcher, template: Template, warmth: int = 0) -> None:
        self.inner = inner
        self._template = template
        self._warmth = warmth

    def take(self, token: int) -> None:
        """The sequence has got a token; one that the grammar forbids puts the matcher into error."""
        self.inner.consume_token(token)
        self._warmth += 1
        if self._warmth == MOST_WARMTH:
            self._template.learn(self.inner, self._warmth)

    def take_all(self, tokens: Sequence[int]) -> None:
        """The same for what a sequence had before it was put off."""
        if tokens:
            self.inner.consume_tokens(list(tokens))
            self._warmth += len(tokens)

    def leave(self) -> None:
        """The sequence has ended, or was put off."""
        if self._warmth < MOST_WARMTH:
            self._template.learn(self.inner, self._warmth)

    @property
    def error(self) -> str | None:
        """Why there is no next token: the grammar takes too much work here, say. None: there is."""
        return readable_error(self.inner.get_error()) if self.inner.is_error() else None


MOST_KEPT = 256
"""Grammars kept compiled, the latest used."""


class Grammars:
    """Compiles in a thread of its own and keeps the latest. Nothing of llguidance is imported before the first one.

    Safe to use from several threads: whoever queues requests prepares, whoever computes takes matchers.
    """

    def __init__(self) -> None:
        self._vocabulary: Vocabulary | None = None
        self._spelled: TokenBytes | None = None
        self._tokenizer: LLTokenizer | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._kept: OrderedDict[Constraint, Future[Template]] = OrderedDict()
        self._lock = threading.Lock()

    def use(self, vocabulary: Vocabulary) -> None:
        """Compile for this vocabulary, the first that is told."""
        self._vocabulary = self._vocabulary or vocabulary

    def prepare(self, constraint: Constraint) -> Future[Template]:
        """Begin to compile, unless that is done or under way. What fails raises ConstraintError from the future."""
        with self._lock:
            found = self._kept.get(constraint)
            if found is None:
                self._pool = self._pool or ThreadPoolExecutor(1, "plimsoll-grammars")
                found = self._kept[constraint] = self._pool.submit(self._compile, constraint)
                self._drop_oldest()
            self._kept.move_to_end(constraint)
            return found

    def matcher(self, constraint: Constraint) -> Matcher:
        """One that has taken nothing yet. Waits where it has to be compiled; raises ConstraintError."""
        return self.prepare(constraint).result().matcher()

    def spelled(self) -> TokenBytes:
        """How tokens spell text. Raises ConstraintError where nobody has told."""
        self._spelled = self._spelled or TokenBytes(self._told())
        return self._spelled

    def ends(self) -> Sequence[int]:
        """The tokens that end a text. Raises ConstraintError where nobody has told."""
        return self._told().end_ids

    def _told(self) -> Vocabulary:
        if self._vocabulary is None:
            raise ConstraintError("the engine was not told how its tokens spell text")
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
