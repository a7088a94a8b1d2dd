"""What a request's text must look like."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import msgspec

Kind = Literal["json", "regex", "choice", "grammar", "lark", "tags", "without"]

MOST_BYTES = 256 * 1024
"""Of a constraint's source: what a schema, a pattern or a grammar may have."""


class ConstraintError(ValueError):
    """A constraint is malformed, too large, or asks for what cannot be enforced; the message says which."""


class Constraint(msgspec.Struct, frozen=True):
    """The language that an answer is taken from, to the last token. `source` is what the client gave, as text.

    - "json": a JSON Schema; the answer is a JSON document that it accepts.
    - "regex": a regular expression that the whole answer matches.
    - "choice": a JSON list of strings, one of which the answer is.
    - "grammar": a grammar in Lark's notation, or in EBNF as llama.cpp writes it (rules with `::=`); begins at `start`
      or `root`.
    - "lark": the first of these, whatever is in it.
    - "tags": a structural tag: free text in which what follows a trigger is constrained.
    - "without": a JSON list of strings, none of which stands anywhere in the answer.

    A schema that cannot be enforced as a whole is refused where it is `strict`; else what can be is.
    """

    kind: Kind
    source: str
    strict: bool = True

    def __post_init__(self) -> None:
        """Raises ConstraintError for a source that is too long, whatever it says."""
        if len(self.source) > MOST_BYTES:
            raise ConstraintError(f"has {len(self.source)} characters, and {MOST_BYTES} are the most")

    @classmethod
    def json(cls, schema: Mapping[str, Any] | bool | str, *, strict: bool = True) -> Self:
        """Documents of a schema, given as an object or as its text; True: any document."""
        return cls("json", schema if isinstance(schema, str) else _text(schema), strict)

    @classmethod
    def regex(cls, pattern: str) -> Self:
        """Texts that a pattern matches as a whole."""
        return cls("regex", pattern)

    @classmethod
    def choice(cls, options: Sequence[str]) -> Self:
        """One of some texts."""
        return cls("choice", _text(list(options)))

    @classmethod
    def grammar(cls, text: str) -> Self:
        """Texts of a grammar."""
        return cls("grammar", text)

    @classmethod
    def tags(cls, tag: Mapping[str, Any] | str, *, strict: bool = True) -> Self:
        """Free text with constrained parts: `{"structures": [{"begin", "schema", "end"}], "triggers": [...]}`."""
        return cls("tags", tag if isinstance(tag, str) else _text(tag), strict)

    @classmethod
    def without(cls, words: Sequence[str]) -> Self:
        """Any text in which none of these stands, were it within a word."""
        return cls("without", _text(list(words)))


def _text(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise ConstraintError(f"is no JSON: {error}") from error
