"""Arguments of calls, as text: what can be read of them, whole or cut."""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import from_json


def is_whole(text: str) -> bool:
    """Whether arguments are a JSON object, to its end."""
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def beginning_of(text: str) -> dict[str, Any] | None:
    """The fields that can be read of an object that may be cut off; None for a text that begins no object."""
    try:
        found = from_json(text, allow_partial="trailing-strings")
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
