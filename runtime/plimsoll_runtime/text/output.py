"""The text of one request's answer: detokenised, ended by stop strings, as it grows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from plimsoll_runtime.engine.messages import RequestOutput
from plimsoll_runtime.engine.params import SamplingParams
from plimsoll_runtime.text.detokenizer import Vocabulary, new_detokenizer
from plimsoll_runtime.text.stop import StopMatcher, UnskippedStopMatcher


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
