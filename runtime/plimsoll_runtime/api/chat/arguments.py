"""What of the schemas of tools can be enforced."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from plimsoll_runtime.engine.protocol.constraint import MOST_BYTES, ConstraintError
from plimsoll_runtime.structured.schemas.normalise import Normalised, normalise
from plimsoll_runtime.structured.schemas.problems import refuse
from plimsoll_runtime.structured.schemas.types import SHAPES
from plimsoll_runtime.tools.base import Tool

_MOST_KEPT_BYTES = 16 * 1024
"""Of a schema that is kept rewritten: agents send the same tools with each request."""


def enforced(tools: Sequence[Tool]) -> Sequence[tuple[Tool, Sequence[str]]]:
    """Tools with what can be enforced of their schemas, each with the JSON pointers of what cannot. Raises
    ConstraintError where a tool is strict and not all can be, and for more than a constraint may have.
    """
    texts = [_text(tool) for tool in tools]
    if (size := sum(map(len, texts))) > MOST_BYTES:
        raise ConstraintError(f"the tools' schemas have {size} characters, and {MOST_BYTES} are the most")
    return [_enforced(tool, text) for tool, text in zip(tools, texts, strict=True)]


def _enforced(tool: Tool, text: str) -> tuple[Tool, Sequence[str]]:
    try:
        found = _kept(text) if len(text) <= _MOST_KEPT_BYTES else normalise(json.loads(text))
        refuse(found.unenforced if tool.strict else ())
    except ConstraintError as error:
        if tool.strict:
            raise ConstraintError(f"the tool {tool.name!r}, {error}") from error
        return shallow(tool), [""]
    return replace(tool, parameters=found.schema), [each.pointer for each in found.unenforced]


def shallow(tool: Tool) -> Tool:
    """With the names of an object's fields and their types, and which of them must be there."""
    given = tool.parameters.get("properties")
    fields = given if isinstance(given, dict) else {}
    types = {name: {"type": field["type"]} if _has_type(field) else {} for name, field in fields.items()}
    required = tool.parameters.get("required")
    needed = {"required": required} if SHAPES["required"].fits(required) else {}
    return replace(tool, parameters={"type": "object", "properties": types} | needed)


def _has_type(field: Any) -> bool:
    return isinstance(field, dict) and SHAPES["type"].fits(field.get("type"))


def _text(tool: Tool) -> str:
    try:
        return json.dumps(tool.parameters)
    except RecursionError as error:
        raise ConstraintError(f"the schema of the tool {tool.name!r} is nested too deeply") from error


@lru_cache(512)
def _kept(text: str) -> Normalised:
    return normalise(json.loads(text))
