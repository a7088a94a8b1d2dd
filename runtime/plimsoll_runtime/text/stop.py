"""Stop strings in a text that arrives in pieces: nothing of one ever leaks.

The match that is complete first wins, and the longest of those that end at the same character, so that the result
is the same however the text was cut into deltas.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence


class StopMatcher:
    """Passes text on, except what may still turn out to begin a stop string."""

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        """`include`: give out the stop string itself too, and end after it."""
        self._automata = [_Automaton(stop) for stop in stops]
        self._include = include
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """The text that is safe to give out. Once `matched` is set, always empty."""
        if self.matched is not None:
            return ""
        if not self._automata:
            return text
        for end, character in enumerate(text, start=1):
            if matched := self._step(character):
                self.matched = matched
                return self._until_match(self._held + text[:end], matched)
        seen = self._held + text
        safe = len(seen) - max(automaton.length for automaton in self._automata)
        self._held = seen[safe:]
        return seen[:safe]

    def finish(self) -> str:
        """What was held back and is now known to be no stop string."""
        held, self._held = self._held, ""
        return held

    def _step(self, character: str) -> str | None:
        complete = [a.stop for a in self._automata if a.step(character)]
        return max(complete, key=len) if complete else None

    def _until_match(self, seen: str, matched: str) -> str:
        self._held = ""
        return seen if self._include else seen[: len(seen) - len(matched)]


class UnskippedStopMatcher:
    """Passes text on as `StopMatcher` does, where stop strings hold special tokens that the text may leave out.

    Those of `unskipped` are searched for in the text with all special tokens, the others in the text without those
    that are left out. A stop string that is given out is given out whole.
    """

    def __init__(self, stops: Sequence[str], unskipped: Collection[str], *, include: bool = False) -> None:
        self._visible = [_Automaton(stop) for stop in stops if stop not in unskipped]
        self._all = [_Automaton(stop) for stop in stops if stop in unskipped]
        self._include = include
        self._held: list[tuple[str, bool]] = []  # characters, and whether they are given out
        self.matched: str | None = None

    def push(self, text: str, *, left_out: bool = False) -> str:
        """The text that is safe to give out, without what was `left_out`. Once `matched` is set, always empty."""
        if self.matched is not None:
            return ""
        for character in text:
            self._held.append((character, not left_out))
            if matched := self._step(character, left_out=left_out):
                self.matched = matched
                return self._until_match(matched)
        return self._given(self._unsafe_from())

    def finish(self) -> str:
        """What was held back and is now known to be no stop string."""
        return self._given(len(self._held))

    def _step(self, character: str, *, left_out: bool) -> str | None:
        complete = [a.stop for a in self._all if a.step(character)]
        if not left_out:
            complete += [a.stop for a in self._visible if a.step(character)]
        return max(complete, key=len) if complete else None

    def _until_match(self, matched: str) -> str:
        kept = len(self._held) - len(matched) if self._all_has(matched) else self._last_visible(len(matched))
        before = self._given(kept)
        self._held = []
        return before + matched if self._include else before

    def _all_has(self, stop: str) -> bool:
        return any(automaton.stop == stop for automaton in self._all)

    def _unsafe_from(self) -> int:
        """Where the first character is held that may begin a stop string."""
        longest = max((automaton.length for automaton in self._visible), default=0)
        return min(
            len(self._held) - max((automaton.length for automaton in self._all), default=0),
            self._last_visible(longest) if longest else len(self._held),
        )

    def _last_visible(self, count: int) -> int:
        """The place of the first of the last `count` visible characters."""
        places = [place for place, (_, visible) in enumerate(self._held) if visible]
        return places[-count]

    def _given(self, end: int) -> str:
        given, self._held = self._held[:end], self._held[end:]
        return "".join(character for character, visible in given if visible)


class _Automaton:
    """Knuth-Morris-Pratt: how many characters of `stop` the text ends with, in constant amortised time."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.length = 0
        self._fallback = _borders(stop)

    def step(self, character: str) -> bool:
        """Take one more character; whether the stop string is complete. Not to be called again once it is."""
        while self.length and self.stop[self.length] != character:
            self.length = self._fallback[self.length - 1]
        if self.stop[self.length] == character:
            self.length += 1
        return self.length == len(self.stop)


def _borders(text: str) -> list[int]:
    """For each prefix, the length of its longest proper border (a prefix that is also its suffix)."""
    borders = [0] * len(text)
    length = 0
    for index in range(1, len(text)):
        while length and text[index] != text[length]:
            length = borders[length - 1]
        if text[index] == text[length]:
            length += 1
        borders[index] = length
    return borders
