"""A tool-call format is selected by name, or by the chat template."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint

import pytest

from plimsoll_runtime.tools import base
from plimsoll_runtime.tools.base import UnknownFormat
from plimsoll_runtime.tools.formats import hermes
from plimsoll_runtime.tools.registry import FORMATS, fitting, named

TEMPLATES = {
    "harmony": "<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }} to=functions.{{ name }}",
    "nemotron": "<AVAILABLE_TOOLS>{{ tools }}</AVAILABLE_TOOLS><TOOLCALL>[{{ calls }}]</TOOLCALL>",
    "seed_oss": "<seed:tool_call>\\n<function={{ name }}>\\n<parameter={{ key }}>{{ value }}</parameter>",
    "gemma4": "<|turn>model\\n<|tool_call>call:{{ name }}{<tool_call|>",
    "functiongemma": "<start_of_turn>model\\n<start_function_call>call:{{ name }}{{ '{' }} parameters",
    "gemma3": "<start_of_turn>model\\n```tool_code\\n{{ call }}",
    "gemma3_json": '<start_of_turn>user\\n{"name": function name, "parameters": dictionary}',
    "llama4_pythonic": "<|header_start|>system<|header_end|>[func_name1(params_name1=params_value1)] parameters",
    "qwen3_coder": "<tool_call>\\n<function={{ name }}>\\n<parameter={{ key }}>\\n{{ arguments }}",
    "glm4": "<tool_call>{{ name }}\\n<arg_key>{{ key }}</arg_key>{{ arguments[key] }}",
    "minimax": '{% set begin = "<minimax:tool_call>" %}<invoke name="{{ name }}"><parameter name="{{ key }}">',
    "hermes": '<tool_call>\\n{\\"name\\": \\"{{ name }}\\", \\"arguments\\": {{ call.arguments }}}\\n</tool_call>',
    "llama3": '<|start_header_id|>assistant<|end_header_id|>{"name": "{{ name }}", "parameters": {{ call.arguments }}}',
    "mistral": "[TOOL_CALLS]{{ call.name }}[ARGS]{{ call.arguments | tojson }}",
    "granite": "<|start_of_role|>assistant<|end_of_role|><|tool_call|>{{ calls | tojson }}",
    "phi4": "<|system|>{{ message }}<|tool|>{{ tools }}<|/tool|><|end|><|tool_call|>",
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>{{ call.id }}<|tool_call_argument_begin|>",
    "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{{ type }}<｜tool▁sep｜>{{ call.name }}\\n```json\\n",
    "deepseek_v31": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{{ call.name }}<｜tool▁sep｜>{{ call.arguments }}",
}


class Other:
    """A format that is loaded as a class."""

    name, special = "other", False
    fits, parser, grammar = hermes.HERMES.fits, hermes.HERMES.parser, hermes.HERMES.grammar


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Return a function that adds an entry point with a name and value."""

    def install(name: str, value: str) -> None:
        found = [EntryPoint(name, value, "plimsoll.tool_parsers")]
        monkeypatch.setattr(base, "entry_points", lambda *, group: found if group == "plimsoll.tool_parsers" else [])

    return install


def test_each_format_has_a_template() -> None:
    assert TEMPLATES.keys() == FORMATS.keys()


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_has_one_format(name: str) -> None:
    assert fitting(TEMPLATES[name]) is FORMATS[name]


@pytest.mark.parametrize("template", ["", "{{ messages[0].content }}", "<|im_start|>{{ message.role }}"])
def test_a_template_without_calls(template: str) -> None:
    assert fitting(template) is None


def test_names() -> None:
    assert all(named(name) is form and form.name == name for name, form in FORMATS.items())
    with pytest.raises(
        UnknownFormat, match=r"unknown tool-call format 'herms'; choose one of: deepseek_v3, .*hermes, "
    ):
        named("herms")


def test_another_package_s_format(installed: Callable[[str, str], None]) -> None:
    installed("ours", "plimsoll_runtime.tools.formats.hermes:HERMES")
    assert named("ours") is hermes.HERMES
    with pytest.raises(UnknownFormat, match="ours"):
        named("herms")


def test_another_package_s_format_comes_first(installed: Callable[[str, str], None]) -> None:
    installed("mistral", "plimsoll_runtime.tools.formats.hermes:HERMES")
    assert named("mistral") is hermes.HERMES


def test_a_class_is_made(installed: Callable[[str, str], None]) -> None:
    installed("other", f"{__name__}:Other")
    assert named("other").name == "other"


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("plimsoll_nowhere:FORMAT", "cannot be loaded: No module"),
        ("json:loads", "lacks the attributes name, special, fits, parser"),
    ],
)
def test_a_package_that_is_broken(installed: Callable[[str, str], None], value: str, told: str) -> None:
    installed("broken", value)
    with pytest.raises(UnknownFormat, match=f"plimsoll.tool_parsers: broken .*{told}"):
        named("broken")
    with pytest.raises(UnknownFormat, match=told):
        fitting("whatever")
