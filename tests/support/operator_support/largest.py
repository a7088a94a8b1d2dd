"""The largest object that a schema accepts, in the bytes that etcd stores."""

from __future__ import annotations

import json
import re
from typing import Any

ESCAPED = "<"
r"""kube-apiserver writes it as six bytes, `\u003c`; no other character takes more."""
TEXTS = (ESCAPED, "a", "9")
"""Characters of texts: the first that a field's pattern accepts."""
TIME = "2026-01-01T00:00:00.{:0<{}}Z"


def largest(node: Any) -> Any:
    """Return a value of this schema in which every string, list and number has its greatest length."""
    if "enum" in node:
        return max(node["enum"], key=len)
    match node["type"]:
        case "object":
            return {name: largest(child) for name, child in node["properties"].items()}
        case "array":
            return [_distinct(largest(node["items"]), node, index) for index in range(node["maxItems"])]
        case "string":
            return _text(node)
        case "boolean":
            return False
        case "integer":
            return node["maximum"] if "maximum" in node else 2**31 - 1 if node.get("format") == "int32" else 2**63 - 1
    raise AssertionError(f"no rule for the type {node['type']}")


def stored_bytes(value: Any) -> int:
    """Return the length of the JSON that kube-apiserver stores."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return len(text.encode()) + 5 * text.count(ESCAPED)


def _text(node: Any) -> str:
    length: int = node["maxLength"]
    if node.get("format") == "date-time":
        return TIME.format("", length - len(TIME.format("", 0)))
    pattern = node.get("pattern", "")
    return next(letter * length for letter in TEXTS if re.search(pattern, letter * length))


def _distinct(item: Any, node: Any, index: int) -> Any:
    """Return an item with a unique key, for lists that are maps."""
    keys = {key: f"{index}{item[key][len(str(index)) :]}" for key in node.get("x-kubernetes-list-map-keys", ())}
    return {**item, **keys} if keys else item
