"""Writes the language of answers with calls, in Lark's notation as llguidance reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from plimsoll_runtime.engine.protocol.constraint import ConstraintError
from plimsoll_runtime.structured.grammar import documents_of
from plimsoll_runtime.tools.base import Tool

ANY_CHARACTER = r"(.|\n)"
ANY_TEXT = f"{ANY_CHARACTER}*"
"""Patterns of a character, and of any text."""
_SPACE = r"[ \t\r\n]"
_OBJECTS = '\ncall_0: "{'
"""How `one_of` writes a first call that begins with a brace."""
_START = re.compile("^start:", re.MULTILINE)

_PLAIN = frozenset('_<>=:" ')
"""What means nothing else in a pattern, beside letters and digits: each escape is six characters."""
OBJECT, OBJECT_OR_LIST = r"\{", rf"(\[{_SPACE}*)?\{{"
"""What a call begins with that is JSON, as a pattern."""

SpecialId = Callable[[str], int | None]


@dataclass(frozen=True, slots=True)
class Wrapping:
    """What stands around calls, in order: `marker begin CALL (between CALL)* end close`. `marker` and `close` may be
    special tokens. Where `between` is None, each call is wrapped of its own, and what stands between two is `gap`."""

    marker: str
    begin: str = ""
    between: str | None = None
    end: str = ""
    close: str = ""
    gap: str = ""


def text(value: str) -> str:
    """A string of a grammar; nothing for an empty one."""
    return _safe(json.dumps(value, ensure_ascii=False)) if value else ""


def regex(pattern: str) -> str:
    """A pattern of a grammar, in Rust's notation."""
    written = re.sub(
        r"\\.|/|\n", lambda found: {"/": "\\/", "\n": "\\n"}.get(found[0], found[0]), pattern, flags=re.DOTALL
    )
    return _safe(f"/{written}/")


def marked(value: str, special_id: SpecialId) -> str:
    """A marker, which may be a special token."""
    token = special_id(value) if value else None
    return text(value) if token is None else f"<[{token}]>"


def schema(value: Any) -> str:
    """A JSON value of a schema. Spaces and line breaks may stand between its parts."""
    return _safe(documents_of(value))


def arguments(tool: Tool) -> str:
    """A tool's arguments: an object, whatever its schema leaves open."""
    given = dict(tool.parameters)
    if "type" not in given and not {"$ref", "anyOf", "oneOf", "allOf"} & given.keys():
        given["type"] = "object"
    return schema(given)


def named(tools: Sequence[Tool], key: str, *, required: bool = True) -> list[str]:
    """`{"name": ..., KEY: {...}}` for each tool, as `spaced`."""
    begins = [f'{{"name": {_json(tool.name)}, "{key}": ' for tool in tools]
    heads = [spaced(begin, required=required) for begin in begins]
    return [f"{head} {arguments(tool)} {text('}')}" for head, tool in zip(heads, tools, strict=True)]


def one_of(calls: Sequence[str]) -> str:
    """The rule `call`. Raises ConstraintError where there is none that it could be."""
    if not calls:
        raise ConstraintError("no tool is given that could be called")
    rules = "".join(f"call_{index}: {call}\n" for index, call in enumerate(calls))
    return rules + "call: " + " | ".join(f"call_{index}" for index in range(len(calls))) + "\n"


def wrapped(
    calls: Sequence[str],
    wrapping: Wrapping,
    begins: Sequence[str],
    special_id: SpecialId,
    *,
    required: bool,
    parallel: bool,
) -> str:
    """Answers with calls, each one of `calls`, in their wrapping. `begins` as in `answers`."""
    more = f"({text(wrapping.between or '')} call)*" if parallel and wrapping.between is not None else ""
    begin = text(wrapping.begin) if required else lead(wrapping.begin.strip())
    inner = f"inner: {begin} call {more} {text(wrapping.end)} {marked(wrapping.close, special_id)}\n"
    again = parallel and wrapping.between is None
    rules = one_of(calls) + inner
    return answers(rules, wrapping.marker, begins, special_id, required=required, again=again, gap=wrapping.gap)


def answers(
    rules: str,
    marker: str,
    begins: Sequence[str],
    special_id: SpecialId,
    *,
    required: bool,
    again: bool,
    gap: str = "",
) -> str:
    """Answers in which a marker stands before each `inner`, which the rules say. `again`: more than one of them.

    Where words are allowed, a marker is one of them unless white space and one of `begins` follow it: patterns of the
    first words of a call. From there on the answer is an `inner`. The lexer takes the longest match, so the first
    terminal of an `inner` must be as long as what `begins` matches, but for one character (see `spaced`).
    """
    sign = marked(marker, special_id)
    if required:
        more = f" ({text(gap)} {sign} inner)*" if again else ""
        return f"start: {sign} inner{more}\n{rules}"
    many, one = "(head other* inner)* (TEXT | head other* OTHER)", "TEXT | head other* (OTHER | inner)"
    return (
        f"start: {many if again else one}\nSPACE: {regex(_SPACE)}+\nOTHER: {_beginning_otherwise(begins)}\n"
        f"{_up_to('other', 'OTHER', marker, special_id)}{words_before('head', marker, special_id)}{rules}"
    )


def or_document(grammar: str, kind: Any) -> str:
    """The answers of a grammar, or one JSON document of the schema `kind`. Raises ConstraintError where calls begin as
    documents may: which of the two an answer is going to be would be decided by its first character.
    """
    if grammar.startswith("start: calls\n") and _OBJECTS in grammar:
        raise ConstraintError("calls of this model are bare JSON, beside which an answer is of no other form")
    return f"start: called | document\n{_START.sub('called:', grammar, count=1)}document: {schema(kind)}\n"


def opening(rules: str, begins: Sequence[str], *, required: bool) -> str:
    """Answers that are `calls`, which the rules say, from their beginning. Others begin with none of some patterns."""
    if required:
        return f"start: calls\n{rules}"
    return f"start: calls | OTHER\nOTHER: {_beginning_otherwise(begins)}\n{rules}"


def spaced(value: str, *, required: bool = False) -> str:
    """A string of a grammar, behind white space if words are allowed as well."""
    return text(value) if required else regex(f"{_SPACE}*{escaped(value)}")


def spaced_mark(value: str, special_id: SpecialId, *, required: bool) -> str:
    """A marker, behind white space if words are allowed as well."""
    if special_id(value) is None:
        return spaced(value, required=required)
    return marked(value, special_id) if required else f"SPACE? {marked(value, special_id)}"


def lead(value: str) -> str:
    """What stands before the first call of an `inner`, with white space around it."""
    return regex(f"{_SPACE}*{escaped(value)}{_SPACE}*") if value else "SPACE?"


def one_name(tools: Sequence[Tool]) -> str:
    """The names of the tools, as a pattern."""
    return f"({'|'.join(escaped(tool.name) for tool in tools)})"


def _beginning_otherwise(begins: Sequence[str]) -> str:
    """Text that begins with none of some patterns, behind white space or not: a terminal."""
    barred = f"{_SPACE}*({'|'.join(begins)}){ANY_TEXT}"
    return f"{regex(ANY_TEXT)} & ~{regex(barred)}"


def separated(name: str, items: Sequence[tuple[str, bool]], between: str) -> str:
    """The rule of that name, and those it needs: a row of items in their order, of which those that are not needed
    (False) may be missing, with a text between two."""
    rules = [f"{name}: {name}_first_0\n"]
    for index, (item, needed) in enumerate(items):
        first, more, after = f"{name}_first_{index}", f"{name}_more_{index}", f"{name}_more_{index + 1}"
        rules.append(f"{first}: {item} {after}{'' if needed else f' | {name}_first_{index + 1}'}\n")
        rules.append(f"{more}: {text(between)} {item} {after}{'' if needed else f' | {after}'}\n")
    rules += [f'{name}_{kind}_{len(items)}: ""\n' for kind in ("first", "more")]
    return "".join(rules)


def escaped(value: str) -> str:
    """A text as a pattern."""
    return "".join(char if char.isalnum() or char in _PLAIN else f"\\u{{{ord(char):X}}}" for char in value)


def words_before(name: str, marker: str, special_id: SpecialId) -> str:
    """The rule of that name: text up to a marker, which is read. It brings `TEXT`, which is any text, as well."""
    return f"{_up_to(name, 'TEXT', marker, special_id)}TEXT: {regex(ANY_TEXT)}\n"


def _up_to(name: str, words: str, marker: str, special_id: SpecialId) -> str:
    """The rule of that name: words, a terminal, up to the first marker, which is read."""
    lazy = "[lazy]" if special_id(marker) is None else ""
    return f"{name}{lazy}: {words} {marked(marker, special_id)}\n"


def _json(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _safe(written: str) -> str:
    """Without what would be read as another notation, or as a directive: within JSON both stand in strings only."""
    return written.replace("::=", "\\u003a:=").replace("%llguidance", "\\u0025llguidance")
