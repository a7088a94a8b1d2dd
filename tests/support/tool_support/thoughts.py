"""Outputs with reasoning, and their expected parts. Each entry begins with its format's name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tool_support.reading import parts_of

from plimsoll_runtime.reasoning.base import ReasoningFormat
from plimsoll_runtime.tools.base import Reasoning, Text


@dataclass(frozen=True, slots=True)
class Thoughtful:
    """One output: whether its prompt has begun the reasoning, and the expected reasoning and text."""

    form: str
    says: str
    text: str
    thought: str
    said: str
    opened: bool = False


def split(form: ReasoningFormat, pieces: Iterable[str], *, opened: bool) -> tuple[str, str]:
    """Parse an output in these pieces, and return its reasoning and its text."""
    parts = parts_of(form.parser(opened=opened), pieces)
    assert all(isinstance(part, Reasoning | Text) and part.text for part in parts)
    thought = "".join(part.text for part in parts if isinstance(part, Reasoning))
    return thought, "".join(part.text for part in parts if isinstance(part, Text))


_CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
_HARMONY_CALL = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>"

ANSWERS = [
    Thoughtful("think", "Qwen 3", "<think>\nHm, 2.\n</think>\n\nTwo.", "Hm, 2.", "Two."),
    Thoughtful(
        "think",
        "DeepSeek R1, whose prompt opens the thought",
        "Hm.\n\nSo.\n</think>\n\nTwo.",
        "Hm.\n\nSo.",
        "Two.",
        True,
    ),
    Thoughtful("think", "one that is opened twice", "<think>\nHm.</think>Two.", "Hm.", "Two.", True),
    Thoughtful("think", "GLM 4.5, before a call", f"\n<think>Hm.</think>\n{_CALL}", "Hm.", _CALL),
    Thoughtful("think", "no thought", "Two <b>.\n", "", "Two <b>.\n"),
    Thoughtful("think", "an empty thought", "<think>\n\n</think>\n\nTwo.", "", "Two."),
    Thoughtful(
        "think",
        "tags within",
        "<think>a < b, <think> and </b> </think>x </think>",
        "a < b, <think> and </b>",
        "x </think>",
    ),
    Thoughtful("think", "tags later", "So <think>no</think>", "", "So <think>no</think>"),
    Thoughtful("think", "cut in the thought", "<think>\nHm, \n", "Hm,", ""),
    Thoughtful("think", "cut in the end", "Hm </thin", "Hm </thin", "", True),
    Thoughtful("think", "cut in the beginning", " <thin", "", " <thin"),
    Thoughtful("think", "white space alone", " \n ", "", " \n "),
    Thoughtful(
        "kimi_k2",
        "a call without an end",
        "<think>Hm. <|tool_calls_section_begin|>x",
        "Hm.",
        "<|tool_calls_section_begin|>x",
    ),
    Thoughtful(
        "kimi_k2", "with an end", "Hm.</think><|tool_calls_section_begin|>", "Hm.", "<|tool_calls_section_begin|>", True
    ),
    Thoughtful("mistral", "one", "[THINK]Hm [x].[/THINK]Two.", "Hm [x].", "Two."),
    Thoughtful("seed_oss", "one", "<seed:think>\nHm.\n</seed:think>Two.", "Hm.", "Two."),
    Thoughtful("exaone_deep", "one", "Hm.\n</thought>\n\nTwo.", "Hm.", "Two.", True),
    Thoughtful(
        "granite", "with tags around the answer", "<think>Hm.</think>\n<response>Two.\n</response>", "Hm.", "Two."
    ),
    Thoughtful("granite", "without them", "<think>Hm.</think>\nTwo </response>.", "Hm.", "Two </response>."),
    Thoughtful("granite32", "one", "Here is my thought process: Hm.\n\nHere is my response:\nTwo.", "Hm.", "Two."),
    Thoughtful("hunyuan", "one", "<think>\nHm.\n</think>\n<answer>\nTwo.\n</answer>", "Hm.", "Two."),
    Thoughtful(
        "hunyuan", "what follows", "<think>\n\n</think>\n<answer>\nTwo.\n</answer> Or three.", "", "Two.Or three."
    ),
    Thoughtful(
        "cohere", "one", "<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>Two.<|END_RESPONSE|>", "Hm.", "Two."
    ),
    Thoughtful(
        "cohere",
        "in a text",
        "<|START_THINKING|>Hm.<|END_THINKING|>\n<|START_TEXT|> Two. <|END_TEXT|>",
        "Hm.",
        "Two.",
    ),
    Thoughtful("gemma4", "one", "<|channel>thought\nHm.<channel|>Two.", "Hm.", "Two."),
    Thoughtful("gemma4", "an empty one", "<|channel>thought\n<channel|>Two.", "", "Two."),
    Thoughtful(
        "harmony",
        "one",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Two.<|return|>",
        "Hm.",
        "Two.",
    ),
    Thoughtful("harmony", "the answer alone", "<|channel|>final <|constrain|>json<|message|>{}", "", "{}"),
    Thoughtful(
        "harmony",
        "two thoughts and words before the answer",
        "<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        "<|start|>assistant<|channel|>analysis<|message|>B<|end|><|start|>assistant<|channel|>final<|message|>C",
        "A\n\nB",
        "I look.\n\nC",
    ),
    Thoughtful(
        "harmony",
        "a call, which is for the tools' format",
        f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant{_HARMONY_CALL}",
        "Hm.",
        f"<|start|>assistant{_HARMONY_CALL}",
    ),
    Thoughtful(
        "harmony",
        "a call of a tool of its own",
        "<|channel|>analysis to=python code<|message|>print(1)<|call|>",
        "print(1)",
        "",
    ),
    Thoughtful("harmony", "a call that is cut", _HARMONY_CALL[:-9], "", _HARMONY_CALL[:-9]),
    Thoughtful(
        "harmony",
        "a header without a message",
        "<|channel|>analysis<|end|><|start|>assistant<|channel|>final<|message|>A",
        "",
        "A",
    ),
    Thoughtful("harmony", "no messages", "Two <b>.", "", "Two <b>."),
    Thoughtful("harmony", "cut in a header", "<|channel|>analysis<|message|>Hm.<|end|><|start|>assis", "Hm.", ""),
    Thoughtful("harmony", "cut in a thought", "<|channel|>analysis<|message|>Hm. <|e", "Hm. <|e", ""),
    Thoughtful(
        "harmony", "ends that are missing", "<|channel|>analysis<|message|>A<|channel|>final<|message|>B", "A", "B"
    ),
]
