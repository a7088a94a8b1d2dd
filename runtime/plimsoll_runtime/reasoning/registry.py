"""Selects the reasoning format of a model, and defines formats that differ only in their tags."""

from __future__ import annotations

from collections.abc import Mapping

from plimsoll_runtime.reasoning.base import Marks, ReasoningFormat
from plimsoll_runtime.reasoning.harmony import FORMAT as HARMONY
from plimsoll_runtime.reasoning.tags import TagFormat, tagged
from plimsoll_runtime.tools.base import Entries

_BEGIN, _END = "<think>", "</think>"
_COHERE = (("<|START_RESPONSE|>", "<|END_RESPONSE|>"), ("<|START_TEXT|>", "<|END_TEXT|>"))

FAMILIES = (
    TagFormat(
        name="gemma4",
        marks=Marks("<|channel>thought", "<channel|>", closing="\n<channel|>"),
        signs=(("<|channel>", "<channel|>"),),
    ),
    tagged("cohere", "<|START_THINKING|>", "<|END_THINKING|>", gap="", wraps=_COHERE),
    tagged("seed_oss", "<seed:think>", "</seed:think>", gap="\n", leads=("<seed:cot_budget_reflect>",)),
    tagged("mistral", "[THINK]", "[/THINK]", gap=""),
    tagged("exaone_deep", "<thought>", "</thought>"),
    tagged("granite32", "Here is my thought process:", "Here is my response:"),
    tagged("granite", _BEGIN, _END, signs=(("<response></response>", _END),), wraps=(("<response>", "</response>"),)),
    tagged("hunyuan", _BEGIN, _END, signs=(("<answer>", _END),), wraps=(("<answer>", "</answer>"),)),
    tagged(
        "kimi_k2",
        _BEGIN,
        _END,
        signs=((_END, "<|tool_calls_section_begin|>"),),
        implied=("<|tool_calls_section_begin|>",),
    ),
    tagged("think", _BEGIN, _END, signs=((_END,), (_BEGIN,))),
)
"""Ordered by how rare the signs are, rarest first. `think` is used by Qwen, DeepSeek, GLM, MiniMax, NVIDIA, EXAONE and
many others, and by their fine-tunes.
"""

NONE = "none"
"""Name that turns off parsing of reasoning, whatever the chat template contains."""

FORMATS: Mapping[str, ReasoningFormat] = {form.name: form for form in (HARMONY, *FAMILIES)}
"""Built-in formats by name, in the order in which they are compared with a template: those with rare signs first."""

_NEEDED = ("name", "marks", "efforts", "fits", "opened_by", "shown", "parser")
_ENTRIES: Entries[ReasoningFormat] = Entries("plimsoll.reasoning_parsers", "reasoning format", _NEEDED)


def named(name: str) -> ReasoningFormat | None:
    """Return the format of a name, or None for `none`. Formats of other packages take precedence. Raises
    UnknownFormat.
    """
    return None if name == NONE else _ENTRIES.named(name, FORMATS)


def fitting(template: str) -> ReasoningFormat | None:
    """Return the reasoning format of a chat template, or None. Raises UnknownFormat if a package's format cannot be
    loaded.
    """
    return _ENTRIES.fitting(template, FORMATS)
