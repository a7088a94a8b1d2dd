"""The tags that models write around their thoughts, by family."""

from __future__ import annotations

from plimsoll_runtime.reasoning.format import Marks
from plimsoll_runtime.reasoning.tags import TagFormat, tagged

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
