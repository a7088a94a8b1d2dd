"""What stands behind the ? of a path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plimsoll_runtime.api.schemas.sampling import invalid


def whole_number(query: Mapping[str, str], name: str, least: int, most: int) -> int | None:
    """None where it is not there. Raises ApiError."""
    given = query.get(name)
    if given is None:
        return None
    if not (given.isascii() and given.isdigit() and len(given) <= 18 and least <= int(given) <= most):
        raise invalid(name, f"must be a whole number from {least} to {most}")
    return int(given)


def choice(query: Mapping[str, str], name: str, known: Sequence[str]) -> str | None:
    """None where it is not there. Raises ApiError."""
    given = query.get(name)
    if given is not None and given not in known:
        raise invalid(name, f"must be one of {', '.join(known)}")
    return given
