"""The text of an output: detokenises it incrementally and ends it at stop strings."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from plimsoll_runtime.engine.protocol.messages import RequestOutput
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.text.detokenizer import Vocabulary, new_detokenizer


class StopMatcher:
    """Passes text on, except for a suffix that may be the start of a stop string.

    The match that is complete first wins, and the longest of those that end at the same character. The result therefore
    does not depend on how the text is split into deltas.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        """With `include`, return the stop string itself too, and end after it."""
        self._automata = [_Automaton(stop) for stop in stops]
        self._include = include
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Return the text that cannot be part of a stop string. Once `matched` is set, always ""."""
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
        """Return the text that was held back."""
        held, self._held = self._held, ""
        return held

    def _step(self, character: str) -> str | None:
        complete = [a.stop for a in self._automata if a.step(character)]
        return max(complete, key=len) if complete else None

    def _until_match(self, seen: str, matched: str) -> str:
        self._held = ""
        return seen if self._include else seen[: len(seen) - len(matched)]


class UnskippedStopMatcher:
    """Like `StopMatcher`, for stop strings that contain special tokens, which the text may leave out.

    Stop strings in `unskipped` are searched for in the text with all special tokens, the others in the text without
    those left out. If the stop string is included in the output, it is included completely.
    """

    def __init__(self, stops: Sequence[str], unskipped: Collection[str], *, include: bool = False) -> None:
        self._visible = [_Automaton(stop) for stop in stops if stop not in unskipped]
        self._all = [_Automaton(stop) for stop in stops if stop in unskipped]
        self._include = include
        self._held: list[tuple[str, bool]] = []  # characters, and whether the output includes them
        self.matched: str | None = None

    def push(self, text: str, *, left_out: bool = False) -> str:
        """Return the text that cannot be part of a stop string. `left_out` text is searched but not returned. Once
        `matched` is set, always "".
        """
        if self.matched is not None:
            return ""
        for character in text:
            self._held.append((character, not left_out))
            if matched := self._step(character, left_out=left_out):
                self.matched = matched
                return self._until_match(matched)
        return self._given(self._unsafe_from())

    def finish(self) -> str:
        """Return the text that was held back."""
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
        """Return the index of the first held character that may start a stop string."""
        longest = max((automaton.length for automaton in self._visible), default=0)
        return min(
            len(self._held) - max((automaton.length for automaton in self._all), default=0),
            self._last_visible(longest) if longest else len(self._held),
        )

    def _last_visible(self, count: int) -> int:
        """Return the index of the first of the last `count` visible characters."""
        places = [place for place, (_, visible) in enumerate(self._held) if visible]
        return places[-count]

    def _given(self, end: int) -> str:
        given, self._held = self._held[:end], self._held[end:]
        return "".join(character for character, visible in given if visible)


class _Automaton:
    """Knuth-Morris-Pratt matching of `stop`, in constant amortised time. `length` is the number of its first characters
    that the text so far ends with.
    """

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.length = 0
        self._fallback = _borders(stop)

    def step(self, character: str) -> bool:
        """Add a character and return whether the stop string is complete. Do not call it again after that."""
        while self.length and self.stop[self.length] != character:
            self.length = self._fallback[self.length - 1]
        if self.stop[self.length] == character:
            self.length += 1
        return self.length == len(self.stop)


def _borders(text: str) -> list[int]:
    """Return, for each prefix, the length of its longest proper border (a prefix that is also its suffix)."""
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
    """Text added by one engine output.

    `token_ids` ends with the token that completed a stop string; later tokens are dropped. `text` may lag behind the
    tokens while a character is incomplete or may start a stop string. `stop_reason` is the stop string, or the id in
    `stop_token_ids`, that ended the output; None for the model's own end.
    """

    text: str
    token_ids: Sequence[int]
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class OutputText:
    """Converts the outputs of one request into text. Nothing may follow a delta with a `finish_reason`.

    Stop strings are searched for only in the text of tokens after the first `min_tokens`. A stop string that contains
    special tokens is searched for in the text with all special tokens, including the token that ends the output, even
    if the output leaves them out. A stop token's own text is left out unless `include_stop_str_in_output`.
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
        """Add a step's output. If the delta has a `finish_reason` but the engine's output has none, the caller must
        abort the engine's request.
        """
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
        """Add a step's output for a request without stop strings."""
        tokens = output.token_ids
        left_out = output.stop_token_id is not None and not self._params.include_stop_str_in_output
        text = self._detokenizer.push_all(tokens[:-1] if left_out else tokens)
        if output.finish_reason is None:
            return TextDelta(text, tokens)
        return TextDelta(text + self._detokenizer.finish(), tokens, output.finish_reason, self._stop_token(output))

    def _stop_token(self, output: RequestOutput) -> int | None:
        """Return the token that ended the output if it is one of the request's stop tokens."""
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
