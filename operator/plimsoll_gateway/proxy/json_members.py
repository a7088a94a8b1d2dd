"""Reads top-level members of a JSON request, such as the model's name, without building the rest.

Trees of Python objects are many times as large as their text. Values are therefore skipped in place (msgspec's Raw):
the text is validated, but no objects are created, except for keys: a single huge one briefly takes up to four times its
size. Skipping takes up to 4 ms a MiB, during which nothing else runs: the parser holds the GIL, so that a thread would
not help. See `CpuTimeSlices`.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Mapping

import msgspec

from plimsoll_gateway.errors.refusals import Refusal, bad_request

# OpenAI's API has about forty keys. A client may send others, but not make the gateway build a dictionary of millions.
MOST_KEYS = 256
LONGEST_NAME = 4096  # bytes of JSON
PIECE = 64 << 10


def model_name(text: memoryview) -> str:
    """Return the `model` of a JSON request. Raises Refusal 400 with the error in the body.

    Stricter than JSON if two parsers could disagree on the model: each key appears once, the text is UTF-8, and NaN is
    not a number.
    """
    return name_in(read_members(text))


def read_members(text: memoryview) -> dict[str, memoryview]:
    """Return the JSON text of each top-level value, without copies. Raises Refusal 400 with the error in the body."""
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
    """A shared decoder: creating one takes longer than reading a small request."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._decoder = msgspec.json.Decoder(dict[_Key, msgspec.Raw], dec_hook=lambda _, key: _Key(key, self._seen))

    def read(self, text: memoryview) -> dict[str, memoryview]:
        """Return the JSON text of each top-level value by key. Raises msgspec's errors, and Refusal 400."""
        self._seen = set()
        return {key.text: memoryview(raw) for key, raw in self._decoder.decode(text).items()}


class _Key:
    """A key of the request, rejected as soon as it is read if it is not allowed."""

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
    """Return the model's name. Raises Refusal 400 without a valid one."""
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
    """Raise Refusal 400 unless the text is UTF-8. Checks in chunks: decoded, a text can be four times as large."""
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
