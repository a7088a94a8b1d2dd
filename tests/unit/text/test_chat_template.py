"""Chat templates: the same text as in Transformers, and no forbidden operations."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import pytest
import tokenizers
from transformers import PreTrainedTokenizerFast

from plimsoll_runtime.text import template_limits as budget_module
from plimsoll_runtime.text.chat_template import ChatTemplate, ChatTemplateError
from plimsoll_runtime.text.tokenizer import load_tokenizer

CHATML = (
    "{%- if tools %}{{ 'tools: ' + (tools | tojson(indent=2)) }}{% endif %}\n"
    "{%- for message in messages %}\n"
    "    {%- if loop.first and message['role'] != 'system' %}\n"
    "        {{- '<|im_start|>system\\nYou help.<|im_end|>\\n' }}\n"
    "    {%- endif %}\n"
    "    {{- '<|im_start|>' + message.role + '\\n' + message.content | trim + '<|im_end|>' + '\\n' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n"
    "    {{- '<|im_start|>assistant\\n' }}\n"
    "{%- endif %}\n"
)
LLAMA = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'].strip() + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'] + ' ' + eos_token }}{% endif %}{% endfor %}"
)
CONTROLS = (
    "{% set ns = namespace(count=0, names=[]) %}\n"
    "{% for m in messages %}\n"
    "    {% if m.role == 'system' %}{% continue %}{% endif %}\n"
    "    {% set ns.count = ns.count + 1 %}\n"
    "    {% if ns.count > 2 %}{% break %}{% endif %}\n"
    "{% generation %}{{ m.content }}{% endgeneration %}|{{ dict(a=1, b=m.role) | tojson }}|"
    "{{ m.name if m.name is defined else 'nobody' }}|{{ '<&>é' | tojson }}\n"
    "{% endfor %}\n"
    "{{ ns.count }}{{ enable_thinking if enable_thinking is defined else 'unset' }}"
)
CONVERSATIONS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": " Hi there \n"}],
    [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b <|im_end|> {{ 7 * 7 }}"},
        {"role": "user", "content": "é😀\n\n"},
    ],
    [{"role": "system", "content": "S"}, {"role": "user", "content": "a", "name": "ann"}],
]


def reference(template: Any, **special: str) -> Any:
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=backend, **special)  # type: ignore[no-untyped-call]
    tokenizer.chat_template = template
    return tokenizer


@pytest.mark.parametrize("template", [CHATML, LLAMA, CONTROLS], ids=["chatml", "llama", "controls"])
@pytest.mark.parametrize("messages", CONVERSATIONS, ids=["one", "three", "system"])
@pytest.mark.parametrize("extra", [{}, {"enable_thinking": False}, {"bos_token": "[B]"}])
@pytest.mark.parametrize("generation", [True, False])
def test_rendering_equals_transformers(
    template: str, messages: list[dict[str, Any]], extra: dict[str, Any], generation: bool
) -> None:
    theirs = reference(template, bos_token="<s>", eos_token="</s>")
    ours = ChatTemplate(template, {"bos_token": "<s>", "eos_token": "</s>"})
    try:
        expected = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=generation, **extra)
    except jinja2.TemplateError as error:
        with pytest.raises(ChatTemplateError, match=str(error).splitlines()[0]):
            ours.render(messages, add_generation_prompt=generation, variables=extra)
    else:
        assert ours.render(messages, add_generation_prompt=generation, variables=extra) == expected


@pytest.mark.parametrize("template", [CHATML, LLAMA], ids=["chatml", "llama"])
@pytest.mark.parametrize("content", ["So far", "So far  \n", ""])
def test_continuing_a_message_equals_transformers(template: str, content: str) -> None:
    theirs = reference(template, bos_token="<s>", eos_token="</s>")
    ours = ChatTemplate(template, {"bos_token": "<s>", "eos_token": "</s>"})
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": content}]
    expected = theirs.apply_chat_template(messages, tokenize=False, continue_final_message=True)
    assert ours.render(messages, continue_final_message=True) == expected


def test_tools_choose_their_named_template() -> None:
    sources = {"default": "plain", "tool_use": "{{ tools | tojson }}"}
    theirs, ours = reference(sources), ChatTemplate(sources)
    messages, tools = [{"role": "user", "content": "a"}], [{"type": "function", "function": {"name": "f"}}]
    assert ours.render(messages) == theirs.apply_chat_template(messages, tokenize=False) == "plain"
    expected = theirs.apply_chat_template(messages, tools=tools, tokenize=False)
    assert ours.render(messages, tools=tools) == expected
    with pytest.raises(ChatTemplateError, match="none named default"):
        ChatTemplate({"rag": "x"}).render(messages)


def test_the_date_is_todays() -> None:
    today = datetime.now().strftime("%Y")
    assert ChatTemplate("{{ strftime_now('%Y') }}").render([]) == today


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ dict.__init__.__globals__ }}",
        "{{ namespace(__class__=1) }}",
        "{% set ns = namespace() %}{% set ns._x = 1 %}",
        "{{ messages.append(1) }}",
        "{{ range(10000000) | list }}",
        "{{ 1 / 0 }}",
        "{{ undefined.attribute }}",
        "{% for %}",
        "{{ raise_exception('no') }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 'a'.encode('utf-8').decode('x') }}",
        "{{ messages[7] + 1 }}",
    ],
)
def test_a_bad_template_is_an_error_that_names_itself(template: str) -> None:
    with pytest.raises(ChatTemplateError, match="chat template"):
        ChatTemplate(template).render([{"role": "user", "content": "a"}])


def test_a_continuation_that_the_template_hides_is_refused() -> None:
    with pytest.raises(ChatTemplateError, match="does not render the last message"):
        ChatTemplate("constant").render([{"role": "user", "content": "a"}], continue_final_message=True)
    with pytest.raises(ChatTemplateError, match="needs a last message"):
        ChatTemplate("x").render([], continue_final_message=True)


def test_where_a_folder_keeps_its_template(tmp_path: Path, byte_level_backend: Any, model_files: Any) -> None:
    def rendered(files: Any) -> str | None:
        template = load_tokenizer(files).chat_template
        return template.render([]) if template else None

    files = model_files(byte_level_backend)
    assert rendered(files) is None
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "processor"}))
    assert rendered(files) == "processor"
    config: dict[str, Any] = {"bos_token": {"content": "<s>"}, "chat_template": "{{ bos_token }}config"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert rendered(files) == "<s>config"
    config["chat_template"] = [{"name": "default", "template": "named"}, {"name": "tool_use", "template": "t"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert rendered(files) == "named"
    (tmp_path / "chat_template.jinja").write_text("jinja")
    assert rendered(files) == "jinja"


NESTED = "{% for a in range(2000) %}{% for b in range(2000) %}BODY{% endfor %}{% endfor %}"
MACROS = "{% macro twice(n) %}{% if n %}{{ twice(n - 1) }}{{ twice(n - 1) }}{% endif %}{% endmacro %}{{ twice(40) }}"


@pytest.mark.parametrize(
    "template",
    [
        NESTED.replace("BODY", ""),
        NESTED.replace("BODY", "{% continue %}"),
        NESTED.replace("range(2000) %}BODY", "range(2000) if false %}BODY"),
        "{% set range = dict %}" + NESTED.replace("range(2000)", "'" + "x" * 2000 + "'"),
        MACROS,
    ],
    ids=["nested", "continue", "filtered", "another range", "macros"],
)
def test_loops_that_never_end_are_ended(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget_module, "MOST_ITERATIONS", 10_000)
    with pytest.raises(ChatTemplateError, match="its loops exceed the limit of 10,000 iterations"):
        ChatTemplate(template).render([])


def test_each_rendering_has_iterations_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget_module, "MOST_ITERATIONS", 100)
    template = ChatTemplate("{% for i in range(count) %}{{ i }},{% endfor %}")
    text = "".join(f"{i}," for i in range(100))
    for _ in range(2):
        assert template.render([], variables={"count": 100}) == text
        with pytest.raises(ChatTemplateError, match="iterations"):
            template.render([], variables={"count": 101})


@pytest.mark.parametrize(
    "product",
    ["'a' * 10**9", "10**9 * 'a'", "[1] * 10**9", "9 ** (9 ** 9)", "10**1000 * 10**1000", "messages * 10**9"],
)
def test_products_are_bounded(product: str) -> None:
    with pytest.raises(ChatTemplateError, match="would be too large"):
        ChatTemplate(f"{{{{ {product} }}}}").render([{"role": "user", "content": "x"}])


def test_products_of_ordinary_sizes_are_what_they_are() -> None:
    template = "{{ 'ab' * 3 }} {{ 3 * 4 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 1.5 * 2 }} {{ [0] * 2 }} {{ 'a' * -1 }}"
    assert ChatTemplate(template).render([]) == "ababab 12 1024 0.5 3.0 [0, 0] "


def test_what_a_template_reads() -> None:
    source = (
        "{%- macro shown(m) -%}{{ m.content }}{{ style }}{%- endmacro -%}{% set ns = namespace(x=0) %}"
        "{% if not budget is defined %}{% set budget = 1 %}{% endif %}{% for m in messages %}"
        "{% if m.skip %}{% continue %}{% endif %}"
        "{% generation %}{{ shown(m) }}{% endgeneration %}{% endfor %}{{ thinking | default(true) }}"
    )
    template = ChatTemplate({"default": source, "tool_use": "{{ tools }}"}, {"bos_token": "<s>"})
    assert template.variables(tools=False) == {"style", "budget", "messages", "thinking"}
    assert template.variables(tools=True) == {"tools"}


@pytest.mark.parametrize("source", ["{% if %}", "{{ a | strange }}", {"other": ""}])
def test_a_template_that_cannot_be_read(source: str | dict[str, str]) -> None:
    with pytest.raises(ChatTemplateError, match=r"cannot be parsed|none named default"):
        ChatTemplate(source).variables(tools=False)
