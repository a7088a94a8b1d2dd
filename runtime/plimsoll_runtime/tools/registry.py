"""Selects the tool-call format of a model."""

from __future__ import annotations

from collections.abc import Mapping

from plimsoll_runtime.tools.base import Entries, ToolFormat
from plimsoll_runtime.tools.formats.deepseek_v3 import DEEPSEEK_V3
from plimsoll_runtime.tools.formats.deepseek_v31 import DEEPSEEK_V31
from plimsoll_runtime.tools.formats.gemma3 import GEMMA3, GEMMA3_JSON
from plimsoll_runtime.tools.formats.gemma4 import FUNCTIONGEMMA, GEMMA4
from plimsoll_runtime.tools.formats.glm4 import GLM4
from plimsoll_runtime.tools.formats.granite import GRANITE
from plimsoll_runtime.tools.formats.harmony import HARMONY
from plimsoll_runtime.tools.formats.hermes import HERMES
from plimsoll_runtime.tools.formats.kimi_k2 import KIMI_K2
from plimsoll_runtime.tools.formats.llama import LLAMA3, LLAMA4_PYTHONIC
from plimsoll_runtime.tools.formats.minimax import MINIMAX
from plimsoll_runtime.tools.formats.mistral import MISTRAL
from plimsoll_runtime.tools.formats.nemotron import NEMOTRON
from plimsoll_runtime.tools.formats.phi4 import PHI4
from plimsoll_runtime.tools.formats.qwen3_coder import QWEN3_CODER, SEED_OSS

FORMATS: Mapping[str, ToolFormat] = {
    each.name: each
    for each in (
        HARMONY,
        GEMMA4,
        FUNCTIONGEMMA,
        GEMMA3,
        DEEPSEEK_V3,
        DEEPSEEK_V31,
        KIMI_K2,
        MINIMAX,
        NEMOTRON,
        SEED_OSS,
        QWEN3_CODER,
        GLM4,
        MISTRAL,
        PHI4,
        GRANITE,
        HERMES,
        LLAMA4_PYTHONIC,
        GEMMA3_JSON,
        LLAMA3,
    )
}
"""Built-in formats by name, in the order in which they are compared with a template: those with rare signs first."""

_NEEDED = ("name", "special", "fits", "parser", "grammar")
_ENTRIES: Entries[ToolFormat] = Entries("plimsoll.tool_parsers", "tool-call format", _NEEDED)


def named(name: str) -> ToolFormat:
    """Return the format of a name. Formats of other packages take precedence. Raises UnknownFormat."""
    return _ENTRIES.named(name, FORMATS)


def fitting(template: str) -> ToolFormat | None:
    """Return the tool-call format of a chat template, or None. Raises UnknownFormat if a package's format cannot be
    loaded.
    """
    return _ENTRIES.fitting(template, FORMATS)
