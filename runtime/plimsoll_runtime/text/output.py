"""The text of an output: detokenised incrementally and ended by stop strings."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from plimsoll_runtime.engine.protocol.messages import RequestOutput
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.text.detokenizer import Vocabulary, new_detokenizer


class StopMatcher:
    """Passes text on, except what may still turn out to begin a stop string.

    The match that is complete first wins, and the longest of those that end at the same character. So the result is the
    same however the text is cut into deltas.
    """

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


@dataclass(frozen=True, slots=True)
class TextDelta:
    """What one engine output adds to an answer.

    `token_ids` ends with the token that completed a stop string; what the engine produced beyond it is dropped.
    `text` may lag behind the tokens while a character is incomplete or may begin a stop string. `stop_reason` is
    the stop string or the id in `stop_token_ids` that ended the answer, None for the model's own end.
    """

    text: str
    token_ids: Sequence[int]
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class OutputText:
    """Turns the outputs of one request into text. After a delta with a `finish_reason` nothing may follow.

    A stop string is searched for only in the text of tokens after the first `min_tokens`. One that holds special tokens
    is searched for in the text with all special tokens, that which ends the answer included, though they may be left
    out of the answer. A stop token's own text is left out unless `include_stop_str_in_output`.
    """

    def __init__(self, params: SamplingParams, vocabulary: Vocabulary) -> None:
        self._params = params
        self._detokenizer = new_detokenizer(vocabulary, skip_special_tokens=params.skip_special_tokens)
        self._special_texts = vocabulary.special_texts
        unskipped = [stop for stop in params.stop if vocabulary.holds_special(stop)]
        include = params.include_stop_str_in_output
        self._unskipped = UnskippedStopMatcher(params.stop, unskipped, include=include) if unskipped else None
        self._stops = self._unskipped or StopMatcher(params.stop, include=include)
        self._count = 0

    def push(self, output: RequestOutput) -> TextDelta:
        """Add what a step produced. With the delta's `finish_reason` set, the request is over even if the engine's
        is not: the caller then aborts it."""
        if not self._params.stop:
            return self._push_all(output)
        parts: list[str] = []
        for index, token_id in enumerate(output.token_ids):
            ends = output.stop_token_id is not None and index == len(output.token_ids) - 1
            parts.append(self._push_token(token_id, ends))
            if self._stops.matched is not None:
                return self._delta(parts, output.token_ids[: index + 1], "stop", self._stops.matched)
        if output.finish_reason is None:
            return self._delta(parts, output.token_ids, None, None)
        parts.append(self._stops.push(self._detokenizer.finish()))
        parts.append(self._stops.finish())
        if self._stops.matched is not None:
            return self._delta(parts, output.token_ids, "stop", self._stops.matched)
        return self._delta(parts, output.token_ids, output.finish_reason, self._stop_token(output))

    def _push_all(self, output: RequestOutput) -> TextDelta:
        """The same where nothing is searched for."""
        tokens = output.token_ids
        left_out = output.stop_token_id is not None and not self._params.include_stop_str_in_output
        text = self._detokenizer.push_all(tokens[:-1] if left_out else tokens)
        if output.finish_reason is None:
            return TextDelta(text, tokens)
        return TextDelta(text + self._detokenizer.finish(), tokens, output.finish_reason, self._stop_token(output))

    def _stop_token(self, output: RequestOutput) -> int | None:
        """The token that ended the answer, where it was asked for."""
        return output.stop_token_id if output.stop_token_id in self._params.stop_token_ids else None

    def _push_token(self, token_id: int, ends: bool) -> str:
        left_out = ends and not self._params.include_stop_str_in_output
        text = "" if left_out else self._detokenizer.push(token_id)
        self._count += 1
        if self._count <= self._params.min_tokens:
            return text
        given = self._stops.push(text)
        if self._unskipped is not None and (left_out or self._params.skip_special_tokens):
            given += self._unskipped.push(self._special_texts.get(token_id, ""), left_out=True)
        return given

    @staticmethod
    def _delta(
        parts: list[str], token_ids: Sequence[int], finish_reason: str | None, stop_reason: str | int | None
    ) -> TextDelta:
        return TextDelta("".join(parts), token_ids, finish_reason, stop_reason)
