"""What a request's body asks for in numbers, as attributes of its span."""

from __future__ import annotations

from plimsoll_telemetry import attributes as names
from plimsoll_telemetry.span import AttributeValue

_FIELDS = (
    ("max_tokens", names.REQUEST_MAX_TOKENS),
    ("max_output_tokens", names.REQUEST_MAX_TOKENS),
    ("max_completion_tokens", names.REQUEST_MAX_TOKENS),
    ("temperature", names.REQUEST_TEMPERATURE),
    ("top_p", names.REQUEST_TOP_P),
    ("n", names.REQUEST_CHOICES),
)
"""Fields of bodies. Of two with the same attribute, the later one counts."""


def numbers_of(body: object) -> dict[str, AttributeValue]:
    """Return the attributes of the fields that a body sets. A single choice is not told, as the convention asks."""
    found: dict[str, AttributeValue] = {}
    for field, name in _FIELDS:
        value = getattr(body, field, None)
        if isinstance(value, int | float) and not isinstance(value, bool):
            found[name] = value
    if found.get(names.REQUEST_CHOICES) == 1:
        del found[names.REQUEST_CHOICES]
    return found
