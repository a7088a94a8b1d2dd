"""Which format a model writes its calls in."""

from __future__ import annotations

from collections.abc import Mapping

from plimsoll_runtime.tools.entries import Entries
from plimsoll_runtime.tools.format import ToolFormat
from plimsoll_runtime.tools.formats import (
    deepseek_v3,
    deepseek_v31,
    functiongemma,
    gemma3,
    gemma3_json,
    gemma4,
    glm4,
    granite,
    harmony,
    hermes,
    kimi_k2,
    llama3,
    llama4_pythonic,
    minimax,
    mistral,
    nemotron,
    phi4,
    qwen3_coder,
    seed_oss,
)

FORMATS: Mapping[str, ToolFormat] = {
    module.FORMAT.name: module.FORMAT
    for module in (
        harmony,
        gemma4,
        functiongemma,
        gemma3,
        deepseek_v3,
        deepseek_v31,
        kimi_k2,
        minimax,
        nemotron,
        seed_oss,
        qwen3_coder,
        glm4,
        mistral,
        phi4,
        granite,
        hermes,
        llama4_pythonic,
        gemma3_json,
        llama3,
    )
}
"""Ours by name, in the order in which templates are asked for them: what has the rarest signs comes first."""

_NEEDED = ("name", "special", "fits", "parser", "grammar")
_ENTRIES: Entries[ToolFormat] = Entries("plimsoll.tool_parsers", "format of tool calls", _NEEDED)


def named(name: str) -> ToolFormat:
    """The format of a name. Another package's comes before ours. Raises UnknownFormat."""
    return _ENTRIES.named(name, FORMATS)


def fitting(template: str) -> ToolFormat | None:
    """The format that a chat template renders calls in; None where no format knows it. Raises UnknownFormat for a
    package whose format cannot be loaded."""
    return _ENTRIES.fitting(template, FORMATS)
