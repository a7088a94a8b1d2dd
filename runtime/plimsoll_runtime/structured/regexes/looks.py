"""Look-ahead at the beginning of a text, as patterns that hold together without any."""

from __future__ import annotations

from plimsoll_runtime.structured.regexes.nodes import Anchor, Chars, Choice, Group, Look, Node, Repeat, Sequence

_BEGIN, _END = Anchor("^"), Anchor("$")
_MOST = 16


def apart(node: Node) -> list[Node]:
    """`^(?=A)(?!B)C` as `^A`, what does not begin with B, and `^C`. What is of another form is left as it is."""
    match node:
        case Sequence((Anchor("^"), *rest)):
            looks = []
            while rest and isinstance(rest[0], Look):
                looks.append(rest.pop(0))
            found = [_as_pattern(look) for look in looks if isinstance(look, Look)]
            known = [each for each in found if each is not None]
            if looks and len(known) == len(found):
                return [*known, Sequence((_BEGIN, *rest))]
    return [node]


def _as_pattern(look: Look) -> Node | None:
    """What finds the same texts. None where none is known."""
    parts = list(look.inner.parts) if isinstance(look.inner, Sequence) else [look.inner]
    if parts and parts[0] == _BEGIN:
        parts = parts[1:]
    if not look.negative:
        return Sequence((_BEGIN, Group(Sequence(tuple(parts)))))
    match parts:
        case [Repeat(Chars() as chars, 0, None), Anchor("$")]:
            return _other(chars)
        case _ if len(parts) <= _MOST and all(isinstance(part, Chars) for part in parts):
            return Sequence((_BEGIN, _not_begun([part for part in parts if isinstance(part, Chars)])))
    return None


def _other(chars: Chars) -> Chars:
    return Chars(chars.ranges, chars.properties, not chars.negated)


def _not_begun(chars: list[Chars]) -> Node:
    """Texts that do not begin with these characters, one after the other."""
    if not chars:
        return Chars(())  # every text begins with nothing
    found: Node = Group(Choice((_END, _other(chars[-1]))))
    for char in reversed(chars[:-1]):
        found = Group(Choice((_END, _other(char), Sequence((char, found)))))
    return found
