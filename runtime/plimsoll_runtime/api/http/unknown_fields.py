"""Fields of a request that nothing here knows: left aside and named in a header of the answer, or refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from urllib.parse import quote

from pydantic import BaseModel

from plimsoll_runtime.api.http.errors import ApiError

HEADER = "X-Plimsoll-Ignored"
LIMIT = 1024
"""Bytes of the header's value."""
_MORE, _BETWEEN = "...", ", "
_EMPTY = '""'
"""How a field without a name is told: a header that ends with white space is none."""
_LONGEST = 80
"""Characters of a path, 12 bytes each at worst."""


def unknown_fields(part: BaseModel, where: str = "") -> Iterator[str]:
    """The paths of what was left aside of a body, or of a part of one that stands at `where`."""
    inside = f"{where}." if where else ""
    for name in part.model_extra or ():
        yield inside + name
    for name, value in vars(part).items():
        if value is None:
            continue
        parts = value if isinstance(value, list) else (value,)
        if not parts or not isinstance(parts[0], BaseModel):
            continue  # a list is of parts, or of none: token ids are not looked at one by one
        path = inside + (type(part).model_fields[name].alias or name)
        for index, inner in enumerate(parts):
            yield from unknown_fields(inner, path if inner is value else f"{path}[{index}]")


def ignored(body: BaseModel) -> str:
    """The header's value: the paths of ignored fields, empty where there are none.

    `mood, messages[3].content[1].%C3%A4`: all but letters, digits and `[]/._-~` is escaped as in a URL, and what does
    not fit in `LIMIT` is cut to "...".
    """
    return with_more("", unknown_fields(body))


def with_more(told: str, paths: Iterable[str]) -> str:
    """Such a value, and these paths behind it, each once."""
    shown = told.split(_BETWEEN) if told else []
    if _MORE in shown:
        return told
    room = LIMIT - len(_MORE) - len(told)
    for path in paths:
        entry = quote(path[:_LONGEST] or _EMPTY, safe="[]/", errors="replace") + (_MORE if len(path) > _LONGEST else "")
        room -= len(entry) + len(_BETWEEN)  # of one that is there already, too: a body may have very many
        if room < 0:
            shown.append(_MORE)
            break
        if entry not in shown:
            shown.append(entry)
    return _BETWEEN.join(shown)


def refuse_unknown(body: BaseModel) -> None:
    """Raises ApiError for a field that nothing here knows."""
    for path in unknown_fields(body):
        shown = path if len(path) <= 200 else path[:200] + _MORE
        raise ApiError(f"Unknown parameter: '{shown}'.", param=shown, code="unknown_parameter")
