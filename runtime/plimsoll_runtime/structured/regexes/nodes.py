"""What a regular expression is made of, once it is parsed."""

from __future__ import annotations

from dataclasses import dataclass

Range = tuple[int, int]
"""The first and the last code point."""


@dataclass(frozen=True, slots=True)
class Chars:
    """One character: of a range or a property, or of none of them. `properties` are Unicode's, as `\\p{...}`."""

    ranges: tuple[Range, ...]
    properties: tuple[str, ...] = ()
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Sequence:
    """One part after the other. Without parts: the empty text."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the branches."""

    branches: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """The inner one `least` to `most` times; None: without bound."""

    inner: Node
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Group:
    """Parentheses. `flags` such as `i` hold within them."""

    inner: Node
    flags: str = ""


@dataclass(frozen=True, slots=True)
class Anchor:
    """`^` or `$`."""

    sign: str


@dataclass(frozen=True, slots=True)
class Look:
    """What must follow, or must not."""

    inner: Node
    negative: bool


@dataclass(frozen=True, slots=True)
class Foreign:
    """What no grammar can enforce; `what` is its name in words."""

    what: str


Node = Chars | Sequence | Choice | Repeat | Group | Anchor | Look | Foreign
