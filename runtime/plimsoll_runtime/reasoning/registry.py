"""Which reasoning format a model uses, and the tags of families."""

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
"""Those with the rarest signs first. `think` is Qwen's, DeepSeek's, GLM's, MiniMax's, NVIDIA's, EXAONE's and many
others': a fine-tune keeps the tags whatever model it began with."""

NONE = "none"
"""Named where thoughts are not told apart, whatever the chat template says."""

FORMATS: Mapping[str, ReasoningFormat] = {form.name: form for form in (HARMONY, *FAMILIES)}
"""Ours by name, in the order in which templates are asked for them: what has the rarest signs comes first."""

_NEEDED = ("name", "marks", "efforts", "fits", "opened_by", "shown", "parser")
_ENTRIES: Entries[ReasoningFormat] = Entries("plimsoll.reasoning_parsers", "format of thoughts", _NEEDED)


def named(name: str) -> ReasoningFormat | None:
    """The format of a name; None for `none`. Another package's comes before ours. Raises UnknownFormat."""
    return None if name == NONE else _ENTRIES.named(name, FORMATS)


def fitting(template: str) -> ReasoningFormat | None:
    """The format that a chat template renders thoughts in; None where it knows none. Raises UnknownFormat for a
    package whose format cannot be loaded."""
    return _ENTRIES.fitting(template, FORMATS)
