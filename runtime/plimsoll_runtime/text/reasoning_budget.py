"""Follows an answer's tokens through its thoughts: how many there are, and what must or may come next."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Callable

from plimsoll_runtime.engine.protocol.sampling_params import ReasoningMarkers

WHITE = b" \t\r\n"


class ReasoningTracker:
    """Those of one answer. It is the same wherever it is done: engines bound and count them as servers do.

    - `inside`: whether the next token is within a thought.
    - `tokens`: how many are part of thoughts, with their markers, and `used` how many without.
    - `forced`: the next tokens, where the model may not choose them freely: for each the ids of which it is one.
    - `stray`: the token that ended a thought has the beginning of what follows in it.
    """

    def __init__(self, thought: ReasoningMarkers, spell: Callable[[int], bytes], *, constrained: bool = False) -> None:
        """`spell` gives a token's bytes. `constrained`: what follows is kept to a grammar, so that gaps are forced."""
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
        """Whether nothing that comes can be a thought."""
        return not (self.inside or self._fresh or self._thought.anywhere or self.forced or self._before_answer)

    @property
    def constrains(self) -> bool:
        """Whether the answer's constraint holds for the next token."""
        if self._thought.answer is None:
            return not self.inside and not self.forced
        return not self._before_answer

    @property
    def opening(self) -> int | None:
        """The token that begins a thought, where the next one may."""
        return self._thought.opening if self._fresh and not self.forced else None

    @property
    def barred(self) -> tuple[int, ...]:
        """What may not come next where a constraint follows the thought."""
        return self._thought.barred if self.inside else ()

    def take(self, token: int) -> None:
        """The answer has one more token."""
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
        """Where the first end of a thought stands in what was seen, and which; no bytes where none does."""
        found = [(self._seen.find(end), end) for end in (self._thought.end, *self._thought.implied)]
        return min((each for each in found if each[0] >= 0), default=(-1, b""))

    def _look(self) -> None:
        """Whether a thought begins."""
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
        """Before a constrained answer, a message is a thought or the answer."""
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
        """Force the end of a thought whose budget is used up, though not within a character."""
        budget = self._thought.budget
        if not self.inside or self.forced or budget is None or self.used < budget:
            return
        if not self._decoder.getstate()[0]:
            self.forced.extend(self._thought.closing)

    def _pass_markers(self) -> None:
        """Those that stand before the answer."""
        while self._before_answer and (where := self._seen.find(self._before_answer[0])) >= 0:
            passed = where + len(self._before_answer.popleft())
            self._seen = self._seen[passed:]
            self._sizes = deque([len(self._seen)])

    def _tokens_from(self, where: int) -> int:
        """How many tokens have bytes behind a place in what was seen."""
        left, tokens = len(self._seen) - where, 0
        for size in reversed(self._sizes):
            if left <= 0:
                break
            left -= size
            tokens += 1
        return tokens

    def _forget(self) -> None:
        """Keep what may be the beginning of a marker."""
        if self._fresh and not self._thought.anywhere:
            return
        markers = (self._thought.begin, self._thought.end, *self._thought.implied, *self._before_answer)
        kept = max(map(len, markers)) - 1
        while self._sizes and len(self._seen) - self._sizes[0] >= kept:
            self._seen = self._seen[self._sizes.popleft() :]
