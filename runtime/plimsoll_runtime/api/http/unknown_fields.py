"""Unknown fields of a request: ignored and named in a header of the response, or refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from urllib.parse import quote

from pydantic import BaseModel

from plimsoll_runtime.api.http.errors import ApiError

HEADER = "X-Plimsoll-Ignored"
LIMIT = 1024
"""Most bytes of the header's value."""
_MORE, _BETWEEN = "...", ", "
_EMPTY = '""'
"""Stands for a field without a name: an empty entry at the end of a header would be lost."""
_LONGEST = 80
"""Most characters of a path, each at most 12 bytes."""


def unknown_fields(part: BaseModel, where: str = "") -> Iterator[str]:
    """Yield the paths of unknown fields in a body, or in the part of a body at `where`."""
    inside = f"{where}." if where else ""
    for name in part.model_extra or ():
        yield inside + name
    for name, value in vars(part).items():
        if value is None:
            continue
        parts = value if isinstance(value, list) else (value,)
        if not parts or not isinstance(parts[0], BaseModel):
            continue  # a list has only parts or none, so lists of token ids are not searched
        path = inside + (type(part).model_fields[name].alias or name)
        for index, inner in enumerate(parts):
            yield from unknown_fields(inner, path if inner is value else f"{path}[{index}]")


def ignored(body: BaseModel) -> str:
    """Return the header's value: the paths of ignored fields, empty if there are none.

    For example `mood, messages[3].content[1].%C3%A4`: everything but letters, digits and `[]/._-~` is escaped as in
    a URL, and a value longer than `LIMIT` ends with "...".
    """
    return with_more("", unknown_fields(body))


def with_more(told: str, paths: Iterable[str]) -> str:
    """Return the header's value with more paths, each once."""
    shown = told.split(_BETWEEN) if told else []
    if _MORE in shown:
        return told
    room = LIMIT - len(_MORE) - len(told)
    for path in paths:
        entry = quote(path[:_LONGEST] or _EMPTY, safe="[]/", errors="replace") + (_MORE if len(path) > _LONGEST else "")
        room -= len(entry) + len(_BETWEEN)  # duplicates count too, which bounds the loop: a body may have very many
        if room < 0:
            shown.append(_MORE)
            break
        if entry not in shown:
            shown.append(entry)
    return _BETWEEN.join(shown)


def refuse_unknown(body: BaseModel) -> None:
    """Raise ApiError for an unknown field."""
    for path in unknown_fields(body):
        shown = path if len(path) <= 200 else path[:200] + _MORE
        raise ApiError(f"Unknown parameter: '{shown}'.", param=shown, code="unknown_parameter")
