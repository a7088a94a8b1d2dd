"""Follows an output's tokens through its reasoning: counts them, and forces the end of reasoning over budget."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Callable

from plimsoll_runtime.engine.protocol.sampling_params import ReasoningMarkers

WHITE = b" \t\r\n"


class ReasoningTracker:
    """Tracks the reasoning of one output. Engines (to enforce budgets) and servers (to count) use the same class.

    - `inside`: whether the next token is within reasoning.
    - `tokens`: number of reasoning tokens including markers; `used`: without markers.
    - `forced`: the next tokens if the model may not choose them freely: for each, the allowed ids.
    - `stray`: the token that ended reasoning also contains the start of the following text.
    """

    def __init__(self, thought: ReasoningMarkers, spell: Callable[[int], bytes], *, constrained: bool = False) -> None:
        """`spell` returns a token's bytes. `constrained`: a grammar applies after reasoning, so that the tokens between
        them (`thought.gap`) are forced.
        """
        self._thought = thought
        self._spell = spell
        self._gap = thought.gap if constrained else ()
        self._steered = thought.steer if constrained else None
        self._fresh = not thought.open
        self._seen = b""
        self._sizes: deque[int] = deque()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._before_answer = deque(thought.answer or ())
        self.inside = thought.open
        self.used = 0
        self.tokens = 0
        self.forced: deque[tuple[int, ...]] = deque()
        self.stray = False
        self._bound()

    @property
    def over(self) -> bool:
        """Whether no reasoning can follow."""
        return not (self.inside or self._fresh or self._thought.anywhere or self.forced or self._before_answer)

    @property
    def constrains(self) -> bool:
        """Whether the output's constraint applies to the next token."""
        if self._thought.answer is None:
            return not self.inside and not self.forced
        return not self._before_answer

    @property
    def opening(self) -> int | None:
        """The token that begins reasoning, if it may come next, else None."""
        return self._thought.opening if self._fresh and not self.forced else None

    @property
    def barred(self) -> tuple[int, ...]:
        """Tokens that reasoning must not contain if a constraint follows it; () outside of reasoning."""
        return self._thought.barred if self.inside else ()

    def take(self, token: int) -> None:
        """Add a token of the output."""
        if self.over:
            return
        was_forced = bool(self.forced)
        if was_forced:
            self.forced.popleft()
        piece = self._spell(token)
        self._seen += piece
        self._sizes.append(len(piece))
        self._pass_markers()
        if self.inside:
            self._think(piece, counted=not was_forced)
        else:
            self._look()
            self._steer()
        self._forget()

    def _think(self, piece: bytes, *, counted: bool) -> None:
        self.tokens += 1
        where, end = self._end()
        if not end:
            self.used += counted
            self._decoder.decode(piece)
            self._bound()
            return
        rest = self._seen[where + len(end) :]
        self.inside = False
        if end in self._thought.implied:
            self.tokens -= self._tokens_from(where)
            self.stray = True
            return
        self.stray = bool(rest.strip(WHITE))
        if not rest and not self.forced:
            self.forced.extend((token,) for token in self._gap)
        self._seen = rest
        self._sizes = deque([len(rest)])

    def _end(self) -> tuple[int, bytes]:
        """Return the position of the first end marker in the recent text, and the marker; b"" if there is none."""
        found = [(self._seen.find(end), end) for end in (self._thought.end, *self._thought.implied)]
        return min((each for each in found if each[0] >= 0), default=(-1, b""))

    def _look(self) -> None:
        """Check whether reasoning begins."""
        begin = self._thought.begin
        if self._thought.anywhere:
            where = self._seen.find(begin)
            if where >= 0:
                self._begin(self._tokens_from(where))
        elif self._fresh:
            text = self._seen.lstrip(WHITE)
            if text.startswith(begin):
                self._begin(len(self._sizes))
            else:
                self._fresh = begin.startswith(text)

    def _steer(self) -> None:
        """Before a constrained output, if the text ends with the marker of `steer`, force one of the tokens that start
        reasoning or the output.
        """
        if self._steered is None or self.forced or not self._before_answer:
            return
        marker, options = self._steered
        if self._seen.endswith(marker):
            self.forced.append(options)

    def _begin(self, tokens: int) -> None:
        self.inside, self._fresh = True, False
        self.tokens += tokens
        self._seen = b""
        self._sizes.clear()
        self._bound()

    def _bound(self) -> None:
        """Force the end of reasoning if its budget is used up, but not within a character."""
        budget = self._thought.budget
        if not self.inside or self.forced or budget is None or self.used < budget:
            return
        if not self._decoder.getstate()[0]:
            self.forced.extend(self._thought.closing)

    def _pass_markers(self) -> None:
        """Skip the markers that precede the output."""
        while self._before_answer and (where := self._seen.find(self._before_answer[0])) >= 0:
            passed = where + len(self._before_answer.popleft())
            self._seen = self._seen[passed:]
            self._sizes = deque([len(self._seen)])

    def _tokens_from(self, where: int) -> int:
        """Return the number of tokens that have bytes after a position in the recent text."""
        left, tokens = len(self._seen) - where, 0
        for size in reversed(self._sizes):
            if left <= 0:
                break
            left -= size
            tokens += 1
        return tokens

    def _forget(self) -> None:
        """Drop text that cannot be the start of a marker."""
        if self._fresh and not self._thought.anywhere:
            return
        markers = (self._thought.begin, self._thought.end, *self._thought.implied, *self._before_answer)
        kept = max(map(len, markers)) - 1
        while self._sizes and len(self._seen) - self._sizes[0] >= kept:
            self._seen = self._seen[self._sizes.popleft() :]
