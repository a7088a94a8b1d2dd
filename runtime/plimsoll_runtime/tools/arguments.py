"""Arguments of calls, as text: what can be read of them, whole or cut."""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import from_json


def value_of(text: str) -> Any:
    """The JSON object or list that a text is, an empty object for an empty text or null; any other text as it is.

    A text is also left as it is if its value holds half of a surrogate pair: no tokenizer can encode that.
    """
    try:
        value = json.loads(text or "null")
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return text
    if value is None:
        return {}
    return value if isinstance(value, dict | list) else text


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
