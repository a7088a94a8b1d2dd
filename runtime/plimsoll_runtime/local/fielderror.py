"""One thing wrong with one field, in the API server's words."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Kinds whose value is not repeated in the message.
VALUELESS = frozenset(["Required value", "Too long", "Forbidden"])
# With any of these, rules over several fields would only confuse: the API server does not run them either.
BLOCKING = frozenset(["Required value", "Unsupported value", "Too long", "Too many", "Type"])


@dataclass(frozen=True, slots=True)
class FieldError:
    """`path` such as `spec.replicas`; `kind` as the API server titles it ("Type" reads "Invalid value" there).

    If the type is wrong, `value` is the name of the type, `found` the value in the file, and `wanted` the schema.
    """

    path: str
    kind: str
    value: Any
    detail: str
    found: Any = None
    wanted: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        title = "Invalid value" if self.kind == "Type" else self.kind
        shown = title if self.kind in VALUELESS else f"{title}: {_shown(self.value)}"
        where = self.path or "<nil>"
        return f"{where}: {shown}: {self.detail}" if self.detail else f"{where}: {shown}"

    @property
    def blocks_rules(self) -> bool:
        """Whether rules over several fields are skipped because of this error."""
        return self.kind in BLOCKING


def field_path(parts: Sequence[str | int]) -> str:
    """`spec.template.env[0].name`."""
    path = ""
    for part in parts:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


def _shown(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
