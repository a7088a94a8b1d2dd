"""The model that a request names, read from its JSON without building the rest of it.

Whole trees of Python objects are many times as large as the text they come from. Values are therefore passed over in
place (msgspec's Raw): the text is checked and nothing is made of it. Only keys are: a single huge one takes four times
its size at worst, for a moment. Passing over takes up to 4 ms for each MiB, during which nothing else runs: the parser
holds Python's lock, so that a thread would not help. See `CpuTimeSlices`.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Mapping

import msgspec

from plimsoll_gateway.errors.refusals import Refusal, bad_request

# OpenAI knows some forty keys. A client may send others, but not build a dictionary of millions here.
MOST_KEYS = 256
LONGEST_NAME = 4096  # bytes of JSON
PIECE = 64 << 10


def model_name(text: memoryview) -> str:
    """The `model` of a JSON request. Raises Refusal 400 that says what is wrong with the body.

    Stricter than JSON where two readers could disagree on which model is meant: each key of the request appears
    once, the text is UTF-8, and NaN is not a number.
    """
    return name_in(read_members(text))


def read_members(text: memoryview) -> dict[str, memoryview]:
    """The JSON text of each top-level value, in place. Raises Refusal 400 that says what is wrong with the body."""
    _check_utf8(text)
    try:
        return _READER.read(text)
    except msgspec.ValidationError:
        raise bad_request("The request body must be a JSON object.") from None
    except msgspec.DecodeError as error:
        reason = str(error).removeprefix("JSON is malformed: ")
        raise bad_request(f"The request body is not valid JSON: {reason}.") from None
    except RecursionError:
        raise bad_request("The request body is nested too deeply.") from None


class _Reader:
    """A decoder, made once: to make one takes longer than to read a small request."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._decoder = msgspec.json.Decoder(dict[_Key, msgspec.Raw], dec_hook=lambda _, key: _Key(key, self._seen))

    def read(self, text: memoryview) -> dict[str, memoryview]:
        """The members. Raises what msgspec raises, and Refusal."""
        self._seen = set()
        return {key.text: memoryview(raw) for key, raw in self._decoder.decode(text).items()}


class _Key:
    """One key of the request, refused as soon as it is read where it must not be there."""

    def __init__(self, text: str, seen: set[str]) -> None:
        if text in seen:
            shown = text if len(text) <= 200 else text[:200] + "..."
            raise bad_request(f"The key {json.dumps(shown)} appears twice in the request body.", param=shown)
        if len(seen) == MOST_KEYS:
            raise bad_request(f"The request has more than {MOST_KEYS} keys.")
        seen.add(text)
        self.text = text


_READER = _Reader()
_NAME = msgspec.json.Decoder(str)


def name_in(members: Mapping[str, memoryview]) -> str:
    """The model that a request names. Raises Refusal 400 where it names none."""
    text = members.get("model")
    if text is None:
        raise bad_request("The request names no model: 'model' is required.", param="model", code="missing_model")
    head = bytes(text[: LONGEST_NAME + 1])
    if not head.startswith(b'"') or head == b'""':
        raise _invalid("'model' must be a string that is not empty.")
    if len(head) > LONGEST_NAME:
        raise _invalid(f"'model' is longer than {LONGEST_NAME} bytes.")
    return _NAME.decode(head)


def _invalid(message: str) -> Refusal:
    return bad_request(message, param="model", code="invalid_model")


def _check_utf8(text: memoryview) -> None:
    """Piece by piece: decoded as a whole, a text can be four times as large."""
    at = 0
    try:
        if len(text) <= PIECE:
            codecs.utf_8_decode(text, "strict", True)
            return
        decoder = codecs.getincrementaldecoder("utf-8")()
        for at in range(0, len(text), PIECE):
            decoder.decode(text[at : at + PIECE], final=at + PIECE >= len(text))
    except UnicodeDecodeError as error:
        raise bad_request(f"The request body is not UTF-8 (after byte {at + error.start}).") from None
