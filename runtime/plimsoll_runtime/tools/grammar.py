"""Writes the grammar of outputs with tool calls, in llguidance's Lark notation."""

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
"""Patterns of one character, and of any text."""
_SPACE = r"[ \t\r\n]"
_OBJECTS = '\ncall_0: "{'
"""How `one_of` writes a first call that starts with a brace."""
_START = re.compile("^start:", re.MULTILINE)

_PLAIN = frozenset('_<>=:" ')
"""Characters without special meaning in a pattern, in addition to letters and digits. An escape takes six
characters.
"""
OBJECT, OBJECT_OR_LIST = r"\{", rf"(\[{_SPACE}*)?\{{"
"""Patterns of the start of a JSON call."""

SpecialId = Callable[[str], int | None]


@dataclass(frozen=True, slots=True)
class Wrapping:
    """The texts around calls, in this order: `marker begin CALL (between CALL)* end close`.

    `marker` and `close` may be special tokens. If `between` is None, each call has its own wrapping, and `gap`
    separates them.
    """

    marker: str
    begin: str = ""
    between: str | None = None
    end: str = ""
    close: str = ""
    gap: str = ""


def text(value: str) -> str:
    """Return a grammar string; "" for an empty value."""
    return _safe(json.dumps(value, ensure_ascii=False)) if value else ""


def regex(pattern: str) -> str:
    """Return a grammar pattern from one in Rust's notation."""
    written = re.sub(
        r"\\.|/|\n", lambda found: {"/": "\\/", "\n": "\\n"}.get(found[0], found[0]), pattern, flags=re.DOTALL
    )
    return _safe(f"/{written}/")


def marked(value: str, special_id: SpecialId) -> str:
    """Return a marker in grammar notation: `<[id]>` if it is a special token, else a string ("" if it is empty)."""
    token = special_id(value) if value else None
    return text(value) if token is None else f"<[{token}]>"


def schema(value: Any) -> str:
    """Return the rule for a JSON value of a schema, with optional spaces and line breaks between its parts."""
    return _safe(documents_of(value))


def arguments(tool: Tool) -> str:
    """Return the rule for a tool's arguments, which are always an object."""
    given = dict(tool.parameters)
    if "type" not in given and not {"$ref", "anyOf", "oneOf", "allOf"} & given.keys():
        given["type"] = "object"
    return schema(given)


def named(tools: Sequence[Tool], key: str, *, required: bool = True) -> list[str]:
    """Return a rule `{"name": ..., "KEY": {...}}` for each tool, with a `spaced` start."""
    begins = [f'{{"name": {_json(tool.name)}, "{key}": ' for tool in tools]
    heads = [spaced(begin, required=required) for begin in begins]
    return [f"{head} {arguments(tool)} {text('}')}" for head, tool in zip(heads, tools, strict=True)]


def one_of(calls: Sequence[str]) -> str:
    """Return the rule `call` with all calls as alternatives. Raises ConstraintError if there are none."""
    if not calls:
        raise ConstraintError("no tool can be called; give at least one tool")
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
    """Return the grammar of outputs with `calls` in their wrapping. For `begins` see `answers`."""
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
    """Return the grammar of outputs in which a marker precedes each `inner`, a rule in `rules`. `again`: several are
    allowed.

    Unless calls are `required`, a marker is text if it is not followed by optional white space and one of `begins`, the
    patterns of a call's first words. After these the output must be an `inner`. The lexer takes the longest match, so
    the first terminal of an `inner` must be at most one character shorter than the match of `begins` (see `spaced`).
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
    """Extend a grammar by the alternative of one JSON document of the schema `kind`. Raises ConstraintError if calls
    can start like documents, because the first character would decide between the two.
    """
    if grammar.startswith("start: calls\n") and _OBJECTS in grammar:
        raise ConstraintError(
            "this model writes calls as bare JSON, which cannot be combined with an output "
            "format; leave out the tools or the format"
        )
    return f"start: called | document\n{_START.sub('called:', grammar, count=1)}document: {schema(kind)}\n"


def opening(rules: str, begins: Sequence[str], *, required: bool) -> str:
    """Return the grammar of outputs that start with `calls`, a rule in `rules`, or with none of the patterns
    `begins`.
    """
    if required:
        return f"start: calls\n{rules}"
    return f"start: calls | OTHER\nOTHER: {_beginning_otherwise(begins)}\n{rules}"


def spaced(value: str, *, required: bool = False) -> str:
    """Return a grammar string; unless calls are `required`, with optional white space before it."""
    return text(value) if required else regex(f"{_SPACE}*{escaped(value)}")


def spaced_mark(value: str, special_id: SpecialId, *, required: bool) -> str:
    """Return a marker in grammar notation; unless calls are `required`, with optional white space before it."""
    if special_id(value) is None:
        return spaced(value, required=required)
    return marked(value, special_id) if required else f"SPACE? {marked(value, special_id)}"


def lead(value: str) -> str:
    """Return the text before the first call of an `inner`, with optional white space around it."""
    return regex(f"{_SPACE}*{escaped(value)}{_SPACE}*") if value else "SPACE?"


def one_name(tools: Sequence[Tool]) -> str:
    """Return a pattern for the names of the tools."""
    return f"({'|'.join(escaped(tool.name) for tool in tools)})"


def _beginning_otherwise(begins: Sequence[str]) -> str:
    """Return a terminal for text that starts with none of the patterns, ignoring leading white space."""
    barred = f"{_SPACE}*({'|'.join(begins)}){ANY_TEXT}"
    return f"{regex(ANY_TEXT)} & ~{regex(barred)}"


def separated(name: str, items: Sequence[tuple[str, bool]], between: str) -> str:
    """Return the rule `name` and its helper rules: items in order, separated by `between`, of which those with False
    are optional.
    """
    rules = [f"{name}: {name}_first_0\n"]
    for index, (item, needed) in enumerate(items):
        first, more, after = f"{name}_first_{index}", f"{name}_more_{index}", f"{name}_more_{index + 1}"
        rules.append(f"{first}: {item} {after}{'' if needed else f' | {name}_first_{index + 1}'}\n")
        rules.append(f"{more}: {text(between)} {item} {after}{'' if needed else f' | {after}'}\n")
    rules += [f'{name}_{kind}_{len(items)}: ""\n' for kind in ("first", "more")]
    return "".join(rules)


def escaped(value: str) -> str:
    """Return a pattern that matches the text literally."""
    return "".join(char if char.isalnum() or char in _PLAIN else f"\\u{{{ord(char):X}}}" for char in value)


def words_before(name: str, marker: str, special_id: SpecialId) -> str:
    """Return the rule `name`: text up to and including a marker. Also defines `TEXT`, which is any text."""
    return f"{_up_to(name, 'TEXT', marker, special_id)}TEXT: {regex(ANY_TEXT)}\n"


def _up_to(name: str, words: str, marker: str, special_id: SpecialId) -> str:
    """Return the rule `name`: the terminal `words` up to and including the first marker."""
    lazy = "[lazy]" if special_id(marker) is None else ""
    return f"{name}{lazy}: {words} {marked(marker, special_id)}\n"


def _json(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _safe(written: str) -> str:
    """Escape texts that would be read as another notation or as a directive. In JSON both occur only within strings."""
    return written.replace("::=", "\\u003a:=").replace("%llguidance", "\\u0025llguidance")
