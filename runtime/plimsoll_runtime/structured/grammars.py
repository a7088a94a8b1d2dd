"""Compiled constraints of one model."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from plimsoll_runtime.engine.constraint import Constraint, ConstraintError
from plimsoll_runtime.engine.messages import Vocabulary
from plimsoll_runtime.structured.grammar import limits, told, written
from plimsoll_runtime.structured.matcher import Matcher, Template
from plimsoll_runtime.structured.vocabulary import TokenBytes, compiled

if TYPE_CHECKING:
    from llguidance import LLTokenizer

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
        matcher = LLMatcher(self._tokenizer, written(constraint), log_level=0, limits=limits())
        if matcher.is_error():
            raise ConstraintError(told(matcher.get_error()))
        return Template(matcher)

    def _drop_oldest(self) -> None:
        over = len(self._kept) - MOST_KEPT
        for constraint in [c for c, found in self._kept.items() if found.done()][: max(0, over)]:
            del self._kept[constraint]
