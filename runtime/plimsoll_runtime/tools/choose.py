"""Which format a model writes its calls in."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points

from plimsoll_runtime.tools.format import ToolFormat
from plimsoll_runtime.tools.formats import (
    deepseek_v3,
    deepseek_v31,
    glm4,
    granite,
    hermes,
    kimi_k2,
    llama3,
    llama4_pythonic,
    minimax,
    mistral,
    phi4,
    qwen3_coder,
)

ENTRY_POINTS = "plimsoll.tool_parsers"

FORMATS: Mapping[str, ToolFormat] = {
    module.FORMAT.name: module.FORMAT
    for module in (
        deepseek_v3,
        deepseek_v31,
        kimi_k2,
        minimax,
        qwen3_coder,
        glm4,
        mistral,
        phi4,
        granite,
        hermes,
        llama4_pythonic,
        llama3,
    )
}
"""Ours by name, in the order in which templates are asked for them: what has the rarest signs comes first."""


class UnknownFormat(ValueError):
    """No format has this name, or what has it is none; the message says which there are."""


def named(name: str) -> ToolFormat:
    """The format of a name. Another package's comes before ours. Raises UnknownFormat."""
    others = _others()
    if name in others:
        return _loaded(others[name])
    if name not in FORMATS:
        names = ", ".join(sorted({*FORMATS, *others}))
        raise UnknownFormat(f"there is no format of tool calls named {name!r}; there are: {names}")
    return FORMATS[name]


def fitting(template: str) -> ToolFormat | None:
    """The format that a chat template renders calls in; None where no format knows it. Raises UnknownFormat for a
    package whose format cannot be loaded."""
    candidates = [*(_loaded(point) for point in _others().values()), *FORMATS.values()]
    return next((candidate for candidate in candidates if candidate.fits(template)), None)


def _others() -> Mapping[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}


def _loaded(point: EntryPoint) -> ToolFormat:
    try:
        found = point.load()
    except Exception as error:  # it is another package's code
        raise UnknownFormat(f"{ENTRY_POINTS}: {point.name} ({point.value}) cannot be loaded: {error}") from error
    made: ToolFormat = found() if isinstance(found, type) else found
    missing = [each for each in ("name", "special", "fits", "parser", "grammar") if not hasattr(made, each)]
    if missing:
        raise UnknownFormat(f"{ENTRY_POINTS}: {point.name} ({point.value}) has no {', '.join(missing)}")
    return made
