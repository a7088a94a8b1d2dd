"""Which format a model writes its thoughts in."""

from __future__ import annotations

from collections.abc import Mapping

from plimsoll_runtime.reasoning.families import FAMILIES
from plimsoll_runtime.reasoning.format import ReasoningFormat
from plimsoll_runtime.reasoning.harmony import FORMAT as HARMONY
from plimsoll_runtime.tools.entries import Entries

NONE = "none"
"""Named where thoughts are not told apart, whatever the chat template says."""

FORMATS: Mapping[str, ReasoningFormat] = {form.name: form for form in (HARMONY, *FAMILIES)}
"""Ours by name, in the order in which templates are asked for them: what has the rarest signs comes first."""

_NEEDED = ("name", "marks", "efforts", "fits", "opened_by", "shown", "parser")
_ENTRIES: Entries[ReasoningFormat] = Entries("plimsoll.reasoning_parsers", "format of thoughts", _NEEDED)


def named(name: str) -> ReasoningFormat | None:
    """The format of a name; None for `none`. Another package's comes before ours. Raises UnknownFormat."""
    return None if name == NONE else _ENTRIES.named(name, FORMATS)


def fitting(template: str) -> ReasoningFormat | None:
    """The format that a chat template renders thoughts in; None where it knows none. Raises UnknownFormat for a
    package whose format cannot be loaded."""
    return _ENTRIES.fitting(template, FORMATS)
