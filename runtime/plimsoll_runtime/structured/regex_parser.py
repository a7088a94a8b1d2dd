"""Parses ECMA-262 regular expressions, with extensions that Python users expect."""

from __future__ import annotations

import re
from dataclasses import dataclass

Range = tuple[int, int]
"""The first and the last code point, both inclusive."""


@dataclass(frozen=True, slots=True)
class Chars:
    r"""One character that is in a range or has a property or, if `negated`, neither. `properties` are Unicode's, like
    `\\p{...}`.
    """

    ranges: tuple[Range, ...]
    properties: tuple[str, ...] = ()
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Sequence:
    """Parts in order. No parts: the empty text."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """Alternatives: a text matches one of the branches."""

    branches: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """The inner node, `least` to `most` times; None: without limit."""

    inner: Node
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Group:
    """A group in parentheses. `flags` such as `i` apply within it."""

    inner: Node
    flags: str = ""


@dataclass(frozen=True, slots=True)
class Anchor:
    """`^` or `$`."""

    sign: str


@dataclass(frozen=True, slots=True)
class Look:
    """A look-ahead: text that must follow, or must not."""

    inner: Node
    negative: bool


@dataclass(frozen=True, slots=True)
class Foreign:
    """Syntax that no grammar can enforce; `what` is its name in words."""

    what: str


Node = Chars | Sequence | Choice | Repeat | Group | Anchor | Look | Foreign

LAST = 0x10FFFF
MOST_DEPTH = 100
"""Maximum number of nested groups."""
_DIGITS: tuple[Range, ...] = ((0x30, 0x39),)
_WORD: tuple[Range, ...] = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_WHITE: tuple[Range, ...] = (
    (0x09, 0x0D),
    (0x20, 0x20),
    (0xA0, 0xA0),
    (0x1680, 0x1680),
    (0x2000, 0x200A),
    (0x2028, 0x2029),
    (0x202F, 0x202F),
    (0x205F, 0x205F),
    (0x3000, 0x3000),
    (0xFEFF, 0xFEFF),
)
_LINE_ENDS: tuple[Range, ...] = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))
_SETS = {"d": _DIGITS, "w": _WORD, "s": _WHITE}
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
_COUNTED = re.compile(r"\{([0-9]+)(,([0-9]*))?\}")
_CODE = re.compile(r"u\{([0-9A-Fa-f]{1,6})\}|u([0-9A-Fa-f]{4})|x([0-9A-Fa-f]{2})|c([A-Za-z])")
_PROPERTY = re.compile(r"[pP]\{([A-Za-z0-9_=]{1,64})\}")
_GROUPS = re.compile(r"\?(?P<look><?[=!])|\?P?<(?P<name>[^>=!]+)>|\?(?P<flags>[is]*):|\?(?P<other>.)", re.DOTALL)
_FLAGS = re.compile(r"\(\?([is]+)\)")


class PatternError(ValueError):
    """The text is not a regular expression; the message says why."""


def parse(pattern: str) -> Node:
    """Parse a pattern. Raises PatternError."""
    parser = _Parser(pattern)
    flags = _FLAGS.match(pattern)
    if flags is not None:
        parser.at = flags.end()
    found = parser.choice(0)
    if parser.at < len(pattern):
        raise PatternError("there is a closing parenthesis without an opening one")
    return found if flags is None else Group(found, flags[1])


def complement(ranges: tuple[Range, ...]) -> tuple[Range, ...]:
    """Return all other code points."""
    found, begin = [], 0
    for low, high in merged(ranges):
        if low > begin:
            found.append((begin, low - 1))
        begin = high + 1
    if begin <= LAST:
        found.append((begin, LAST))
    return tuple(found)


def merged(ranges: tuple[Range, ...]) -> tuple[Range, ...]:
    """Return the ranges sorted, with overlapping and adjacent ones joined."""
    found: list[Range] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(high, found[-1][1]))
        else:
            found.append((low, high))
    return tuple(found)


class _Parser:
    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0

    def choice(self, depth: int) -> Node:
        """Parse alternatives, up to a closing parenthesis or the end."""
        if depth > MOST_DEPTH:
            raise PatternError(f"it has more than {MOST_DEPTH} nested groups")
        branches = [self._sequence(depth)]
        while self._take("|"):
            branches.append(self._sequence(depth))
        return branches[0] if len(branches) == 1 else Choice(tuple(branches))

    def _sequence(self, depth: int) -> Node:
        parts: list[Node] = []
        while self.at < len(self.pattern) and self.pattern[self.at] not in "|)":
            parts.append(self._repeated(self._atom(depth)))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _repeated(self, node: Node) -> Node:
        while (bounds := self._bounds()) is not None:
            if isinstance(node, Anchor):
                raise PatternError(f"{node.sign!r} cannot be repeated")
            self._take("?")  # lazy repeats match the same texts
            node = Repeat(node, *bounds)
        return node

    def _bounds(self) -> tuple[int, int | None] | None:
        if (counted := _COUNTED.match(self.pattern, self.at)) is not None:
            self.at = counted.end()
            least = int(counted[1][:9])
            most = least if counted[2] is None else int(counted[3][:9]) if counted[3] else None
            if most is not None and most < least:
                raise PatternError(f"the minimum of {counted[0]} is larger than its maximum")
            return least, most
        for sign, least, most in (("*", 0, None), ("+", 1, None), ("?", 0, 1)):
            if self._take(sign):
                return least, most
        return None

    def _atom(self, depth: int) -> Node:
        char = self.pattern[self.at]
        self.at += 1
        if char == "(":
            return self._group(depth)
        if char == "[":
            return self._class()
        if char == "\\":
            return self._escape()
        if char == ".":
            return Chars(_LINE_ENDS, negated=True)
        if char in "^$":
            return Anchor(char)
        if char in "*+?":
            raise PatternError(f"{char!r} has nothing to repeat")
        return _one(ord(char))

    def _group(self, depth: int) -> Node:
        kind = _GROUPS.match(self.pattern, self.at)
        if kind is None:
            return Group(self._closed(depth))
        self.at = kind.end()
        if kind["look"]:
            inner = self._closed(depth)
            return Foreign("look-behind") if "<" in kind["look"] else Look(inner, kind["look"] == "!")
        if kind["other"]:
            self._closed(depth)
            return Foreign(f"a group that begins with (?{kind['other']}")
        return Group(self._closed(depth), kind["flags"] or "")

    def _closed(self, depth: int) -> Node:
        inner = self.choice(depth + 1)
        if not self._take(")"):
            raise PatternError("a parenthesis is not closed")
        return inner

    def _escape(self) -> Node:
        if self.at == len(self.pattern):
            raise PatternError("it ends with a backslash")
        letter = self.pattern[self.at]
        if letter in "bB":
            self.at += 1
            return Foreign("a word's boundary")
        if letter in "123456789" or self.pattern.startswith("k<", self.at):
            self.at += 1
            return Foreign("a back reference")
        if letter in "AzZ":
            self.at += 1
            return Anchor("^" if letter == "A" else "$")
        return self._single()

    def _single(self) -> Chars | Foreign:
        """Parse an escape sequence, within a class or outside."""
        letter = self.pattern[self.at]
        if (kind := _PROPERTY.match(self.pattern, self.at)) is not None:
            self.at = kind.end()
            return Chars((), ("\\" + kind[0],))
        if (listed := _SETS.get(letter.lower())) is not None:
            self.at += 1
            return Chars(listed if letter.islower() else complement(listed))
        if (code := _CODE.match(self.pattern, self.at)) is not None:
            self.at = code.end()
            value = ord(code[4]) % 32 if code[4] else int(code[1] or code[2] or code[3], 16)
            if value > LAST:
                raise PatternError(f"\\\\{code[0]} is not a character")
            return self._with_pair(value)
        self.at += 1
        return _one(_CONTROLS.get(letter, ord(letter)))

    def _with_pair(self, value: int) -> Chars | Foreign:
        """Return the character `value`. For the first half of a surrogate pair, read the second and return their
        character; an unpaired surrogate is Foreign.
        """
        if not 0xD800 <= value <= 0xDFFF:
            return _one(value)
        other = re.compile(r"\\u([Dd][C-Fc-f][0-9A-Fa-f]{2})").match(self.pattern, self.at)
        if other is None or value > 0xDBFF:
            return Foreign("an unpaired surrogate")
        self.at = other.end()
        return _one(0x10000 + ((value - 0xD800) << 10) + int(other[1], 16) - 0xDC00)

    def _class(self) -> Node:
        negated = self._take("^")
        ranges: list[Range] = []
        properties: list[str] = []
        while not self._take("]"):
            low = self._member()
            if isinstance(low, Foreign):
                return self._foreign_class(low)
            high = self._range_end(low)
            if isinstance(high, Foreign):
                return self._foreign_class(high)
            if high is not None:
                if high.ranges[0][0] < low.ranges[0][0]:
                    raise PatternError("a range of a class is in reverse order")
                low = Chars(((low.ranges[0][0], high.ranges[0][0]),))
            ranges += low.ranges
            properties += low.properties
        if not ranges and not properties:
            return Chars(complement(())) if negated else Foreign("a class without characters")
        return Chars(merged(tuple(ranges)), tuple(properties), negated)

    def _range_end(self, low: Chars) -> Chars | Foreign | None:
        """Return the last character of a range that begins with `low`, or None if there is no hyphen or it is a
        literal.
        """
        if not self.pattern.startswith("-", self.at) or self.pattern.startswith("-]", self.at):
            return None
        if not _is_one(low):
            return None
        begin = self.at
        self.at += 1
        high = self._member()
        if isinstance(high, Chars) and not _is_one(high):
            self.at = begin
            return None
        return high

    def _member(self) -> Chars | Foreign:
        if self.at == len(self.pattern):
            raise PatternError("a class is not closed")
        char = self.pattern[self.at]
        self.at += 1
        if char != "\\":
            return _one(ord(char))
        if self.at == len(self.pattern):
            raise PatternError("a class is not closed")
        if self._take("b"):
            return _one(8)
        return self._single()

    def _foreign_class(self, what: Foreign) -> Foreign:
        while not self._take("]"):
            self._member()
        return what

    def _take(self, sign: str) -> bool:
        found = self.pattern.startswith(sign, self.at)
        self.at += len(sign) * found
        return found


def _one(code: int) -> Chars:
    return Chars(((code, code),))


def _is_one(chars: Chars) -> bool:
    return not chars.properties and len(chars.ranges) == 1 and chars.ranges[0][0] == chars.ranges[0][1]
