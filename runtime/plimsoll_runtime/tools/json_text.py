"""Follows one JSON value through text that comes in pieces, and says where it ends or is broken."""

from __future__ import annotations

import re

_WHITE = " \t\n\r"
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_NUMBER = {
    "-": {"0": "0", "d": "n"},
    "0": {".": ".", "e": "e"},
    "n": {"0": "n", "d": "n", ".": ".", "e": "e"},
    ".": {"0": "f", "d": "f"},
    "f": {"0": "f", "d": "f", "e": "e"},
    "e": {"+": "s", "-": "s", "0": "x", "d": "x"},
    "s": {"0": "x", "d": "x"},
    "x": {"0": "x", "d": "x"},
}
_WHOLE_NUMBER = {"0", "n", "f", "x"}
_WORDS = {"t": "rue", "f": "alse", "n": "ull"}


class BrokenJson(Exception):
    """The text is no JSON. `at` is the index of the first character that cannot stand there."""

    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.at = at


class JsonValue:
    """One value. Between two calls it is somewhere within: in a string, a number, a word, or between two parts."""

    def __init__(self) -> None:
        self.done = False
        self._open: list[str] = []
        self._state = "value"
        self._rest = ""
        self._is_key = False

    def take(self, text: str, at: int) -> int:
        """Reads on from an index, and gives the index after what belongs to the value. Raises BrokenJson."""
        while at < len(text) and not self.done:
            at = getattr(self, f"_{self._state}")(text, at)
        return at

    def end(self) -> None:
        """The text is over. A number at the top is whole only then."""
        if self._state == "number" and self._rest in _WHOLE_NUMBER:
            self._ended()

    def _value(self, text: str, at: int) -> int:
        char = text[at]
        if char in _WHITE:
            return at + 1
        if char == "]" and self._rest == "first":
            return self._closed(at, "[")
        self._begin(char, at)
        return at + 1

    def _begin(self, char: str, at: int) -> None:
        self._rest = ""
        if char == "{":
            self._open.append(char)
            self._state, self._rest = "key", "first"
        elif char == "[":
            self._open.append(char)
            self._rest = "first"
        elif char == '"':
            self._state, self._is_key = "string", False
        elif char in _WORDS:
            self._state, self._rest = "word", _WORDS[char]
        elif char == "-" or _kind(char) in "0d":
            self._state, self._rest = "number", {"-": "-", "0": "0", "d": "n"}[_kind(char)]
        else:
            raise BrokenJson(at)

    def _key(self, text: str, at: int) -> int:
        char = text[at]
        if char == '"':
            self._state, self._is_key = "string", True
        elif char == "}" and self._rest == "first":
            return self._closed(at, "{")
        elif char not in _WHITE:
            raise BrokenJson(at)
        return at + 1

    def _colon(self, text: str, at: int) -> int:
        if text[at] == ":":
            self._state, self._rest = "value", ""
        elif text[at] not in _WHITE:
            raise BrokenJson(at)
        return at + 1

    def _after(self, text: str, at: int) -> int:
        char = text[at]
        if char == ",":
            self._state, self._rest = ("key" if self._open[-1] == "{" else "value"), ""
        elif char in "}]":
            return self._closed(at, "{" if char == "}" else "[")
        elif char not in _WHITE:
            raise BrokenJson(at)
        return at + 1

    def _string(self, text: str, at: int) -> int:
        match = _PLAIN.match(text, at)
        assert match is not None
        at = match.end()
        if at == len(text):
            return at
        if text[at] == "\\":
            self._state = "escape"
        elif text[at] != '"':
            raise BrokenJson(at)
        elif self._is_key:
            self._state = "colon"
        else:
            self._ended()
        return at + 1

    def _escape(self, text: str, at: int) -> int:
        if text[at] == "u":
            self._state, self._rest = "hex", "uuuu"
        elif text[at] in '"\\/bfnrt':
            self._state = "string"
        else:
            raise BrokenJson(at)
        return at + 1

    def _hex(self, text: str, at: int) -> int:
        if text[at] not in "0123456789abcdefABCDEF":
            raise BrokenJson(at)
        self._rest = self._rest[1:]
        if not self._rest:
            self._state = "string"
        return at + 1

    def _word(self, text: str, at: int) -> int:
        if text[at] != self._rest[0]:
            raise BrokenJson(at)
        self._rest = self._rest[1:]
        if not self._rest:
            self._ended()
        return at + 1

    def _number(self, text: str, at: int) -> int:
        after = _NUMBER[self._rest].get(_kind(text[at]))
        if after is not None:
            self._rest = after
            return at + 1
        if self._rest not in _WHOLE_NUMBER:
            raise BrokenJson(at)
        self._ended()
        return at

    def _closed(self, at: int, opened: str) -> int:
        if self._open.pop() != opened:
            raise BrokenJson(at)
        self._ended()
        return at + 1

    def _ended(self) -> None:
        self._state, self._rest = "after", ""
        self.done = not self._open


def _kind(char: str) -> str:
    if char in "123456789":
        return "d"
    return "e" if char == "E" else char
