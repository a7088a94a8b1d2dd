"""Constraints: the language that a request demands of its output."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import msgspec

Kind = Literal["json", "regex", "choice", "grammar", "lark", "tags", "without"]

MOST_BYTES = 256 * 1024
"""Most characters of a constraint's source."""


class ConstraintError(ValueError):
    """A constraint is malformed, too large, or cannot be enforced; the message says which."""


class Constraint(msgspec.Struct, frozen=True):
    """The language that a request demands of its output. `source` is the client's text.

    - "json": a JSON Schema; the output is a JSON document that it accepts.
    - "regex": a regular expression that matches the whole output.
    - "choice": a JSON list of strings; the output is one of them.
    - "grammar": a grammar in Lark's notation, or in the EBNF of llama.cpp (rules with `::=`). It begins at `start` or
      `root`.
    - "lark": a grammar in Lark's notation, even if it contains `::=`.
    - "tags": a structural tag: free text in which the text after a trigger is constrained.
    - "without": a JSON list of strings; the output contains none of them.

    If `strict`, a schema that cannot be enforced completely is refused; otherwise its enforceable part is enforced.
    """

    kind: Kind
    source: str
    strict: bool = True

    def __post_init__(self) -> None:
        """Raises ConstraintError if the source is too long."""
        if len(self.source) > MOST_BYTES:
            raise ConstraintError(f"has {len(self.source)} characters; at most {MOST_BYTES} are allowed")

    @classmethod
    def json(cls, schema: Mapping[str, Any] | bool | str, *, strict: bool = True) -> Self:
        """Return a constraint to JSON documents of a schema, given as an object or as its text; True: any document."""
        return cls("json", schema if isinstance(schema, str) else _text(schema), strict)

    @classmethod
    def regex(cls, pattern: str) -> Self:
        """Return a constraint to texts that a regular expression matches as a whole."""
        return cls("regex", pattern)

    @classmethod
    def choice(cls, options: Sequence[str]) -> Self:
        """Return a constraint to one of these texts."""
        return cls("choice", _text(list(options)))

    @classmethod
    def grammar(cls, text: str) -> Self:
        """Return a constraint to texts of a grammar, in the notation of Lark or llama.cpp."""
        return cls("grammar", text)

    @classmethod
    def tags(cls, tag: Mapping[str, Any] | str, *, strict: bool = True) -> Self:
        """Return a constraint to text with constrained parts: `{"structures": [{"begin", "schema", "end"}], "triggers":
        [...]}`.
        """
        return cls("tags", tag if isinstance(tag, str) else _text(tag), strict)

    @classmethod
    def without(cls, words: Sequence[str]) -> Self:
        """Return a constraint to text that contains none of these words, not even as a part of a longer word."""
        return cls("without", _text(list(words)))


def _text(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise ConstraintError(f"is not valid JSON: {error}") from error
