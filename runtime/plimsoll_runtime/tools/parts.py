"""What an answer is made of where a model may think, or call tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. `parameters` is the JSON Schema of its arguments, an object. A `strict` one
    is called by no arguments that its schema refuses.
    """

    name: str
    description: str | None
    parameters: Mapping[str, Any]
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Text:
    """Words for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """What the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegins:
    """Call number `index` (from 0) is of this tool; its arguments follow."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of a call's arguments. All of a call's together are a JSON object, as text."""

    index: int
    text: str


Part = Text | Reasoning | CallBegins | Arguments
