"""A reasoning format is selected by name, or by the chat template."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from plimsoll_runtime.reasoning.registry import FORMATS, fitting, named
from plimsoll_runtime.tools import base
from plimsoll_runtime.tools.base import UnknownFormat

TEMPLATES = {
    "harmony": "<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>",
    "gemma4": "<|turn>model\\n<|channel>thought\\n{{ m.reasoning }}<channel|>",
    "cohere": "<|START_THINKING|>{{ m.thoughts }}<|END_THINKING|>",
    "seed_oss": "<seed:think>{{ m.reasoning_content }}</seed:think>",
    "mistral": "[THINK]{{ block.thinking }}[/THINK][TOOL_CALLS]",
    "exaone_deep": "[|assistant|]<thought>\\n{% set content = content.split('</thought>')[-1] %}",
    "granite32": "Write thoughts after 'Here is my thought process:' and the rest after 'Here is my response:'",
    "granite": "write down your thoughts between <think></think> and your response between <response></response>",
    "hunyuan": "{% set content = content.split('<answer>')[-1] %}<think>\\n\\n</think>\\n",
    "kimi_k2": "<think>{{ m.reasoning_content }}</think><|tool_calls_section_begin|>",
    "think": "{%- if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}",
}


def test_each_format_has_a_template() -> None:
    assert TEMPLATES.keys() == FORMATS.keys()


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_has_one_format(name: str) -> None:
    assert fitting(TEMPLATES[name]) is FORMATS[name]
    assert named(name) is FORMATS[name]


def test_results_of_tools_are_no_sign() -> None:
    """MiniMax encloses tool results in tags that Granite uses for its output."""
    assert fitting("{{ '\\n<response>' }}{% if '</think>' in content %}") is FORMATS["think"]


@pytest.mark.parametrize("template", ["", "{{ messages[0].content }}", "<|im_start|>{{ message.role }}<tool_call>"])
def test_a_template_without_thoughts(template: str) -> None:
    assert fitting(template) is None


def test_names() -> None:
    assert named("none") is None
    with pytest.raises(UnknownFormat, match=r"unknown reasoning format 'thnk'; choose one of: .*think"):
        named("thnk")


def test_another_package_s_format(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        EntryPoint("ours", "plimsoll_runtime.reasoning.harmony:Harmony", "plimsoll.reasoning_parsers"),
        EntryPoint("broken", "json:loads", "plimsoll.reasoning_parsers"),
    ]
    monkeypatch.setattr(base, "entry_points", lambda *, group: found if group == "plimsoll.reasoning_parsers" else [])
    ours = named("ours")
    assert ours is not None
    assert ours.name == "harmony"
    with pytest.raises(UnknownFormat, match=r"plimsoll.reasoning_parsers: broken .* lacks the attributes name, marks"):
        named("broken")
