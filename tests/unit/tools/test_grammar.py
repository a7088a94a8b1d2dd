"""Grammars accept valid outputs and no others; every accepted output is parsed as calls."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

import jsonschema
import pytest
from tool_support.reading import read
from tool_support.transcripts import TOOLS
from tool_support.walk import SpecialId, Walk, takes, wander

from plimsoll_runtime.api.schemas.tools import FunctionDefinition
from plimsoll_runtime.engine.protocol.constraint import ConstraintError
from plimsoll_runtime.tools.base import Tool
from plimsoll_runtime.tools.grammar import or_document
from plimsoll_runtime.tools.registry import FORMATS

if TYPE_CHECKING:
    from llguidance import LLTokenizer

DEEPSEEK = "<｜tool▁calls▁begin｜>"

BODIES = {
    "hermes": ("<tool_call>", '\n{"name": "NAME", "arguments": GIVEN}\n</tool_call>', "\n<tool_call>"),
    "llama3": ("", '{"name": "NAME", "parameters": GIVEN}', "; "),
    "granite": ("<|tool_call|>[", '{"name": "NAME", "arguments": GIVEN}', ", "),
    "phi4": ("<|tool_call|>[", '{"name": "NAME", "arguments": GIVEN}', ", "),
    "mistral": ("[TOOL_CALLS]", "NAME[ARGS]GIVEN", "[TOOL_CALLS]"),
    "kimi_k2": (
        "<|tool_calls_section_begin|>",
        "<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>GIVEN<|tool_call_end|>",
        "",
    ),
    "deepseek_v3": (
        DEEPSEEK,
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\nGIVEN\n```<｜tool▁call▁end｜>",
        "\n",
    ),
    "deepseek_v31": (DEEPSEEK, "<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>GIVEN<｜tool▁call▁end｜>", ""),
    "qwen3_coder": ("<tool_call>", "\n<function=NAME>\nGIVEN</function>\n</tool_call>", "\n<tool_call>"),
    "seed_oss": (
        "<seed:tool_call>",
        "\n<function=NAME>\nGIVEN</function>\n</seed:tool_call>",
        "\n<seed:tool_call>",
    ),
    "nemotron": ("<TOOLCALL>[", '{"name": "NAME", "arguments": GIVEN}', ", "),
    "glm4": ("<tool_call>", "NAMEGIVEN\n</tool_call>", "\n<tool_call>"),
    "minimax": ("<minimax:tool_call>\n", '<invoke name="NAME">\nGIVEN</invoke>', "\n"),
    "llama4_pythonic": ("[", "NAME(GIVEN)", ", "),
    "gemma4": ("<|tool_call>", "call:NAME{GIVEN}<tool_call|>", "<|tool_call>"),
    "functiongemma": (
        "<start_function_call>",
        "call:NAME{GIVEN}<end_function_call>",
        "<start_function_call>",
    ),
    "gemma3": ("```tool_code\n", "NAME(GIVEN)", "\n"),
    "gemma3_json": ("", '{"name": "NAME", "parameters": GIVEN}', "\n"),
}
"""Text before calls, a call, and text between two calls."""
ENDS = {
    "granite": "]",
    "phi4": "]<|/tool_call|>",
    "kimi_k2": "<|tool_calls_section_end|>",
    "deepseek_v3": "<｜tool▁calls▁end｜>",
    "deepseek_v31": "<｜tool▁calls▁end｜>",
    "minimax": "\n</minimax:tool_call>",
    "nemotron": "]</TOOLCALL>",
    "llama4_pythonic": "]",
    "gemma3": "\n```",
}
FIELDS = {
    "qwen3_coder": ("<parameter=KEY>\nVALUE\n</parameter>\n", ""),
    "seed_oss": ("<parameter=KEY>VALUE</parameter>\n", ""),
    "glm4": ("\n<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>", ""),
    "minimax": ('<parameter name="KEY">VALUE</parameter>\n', ""),
    "llama4_pythonic": ("KEY=VALUE", ", "),
    "gemma3": ("KEY=VALUE", ", "),
    "gemma4": ("KEY:VALUE", ","),
    "functiongemma": ("KEY:VALUE", ","),
}
"""An argument in formats with separate arguments, and the text between two."""
QUOTES = {"qwen3_coder": "", "seed_oss": "", "glm4": "", "minimax": "", "gemma4": '<|"|>', "functiongemma": "<escape>"}
"""Quotes of texts that are not JSON."""
BARE = ("llama3", "llama4_pythonic", "gemma3_json")
"""Formats whose calls start at the start of the output."""
BEGINS = {
    "hermes": ("<tool_call>", "{"),
    "granite": ("<|tool_call|>", "[{"),
    "phi4": ("<|tool_call|>", "[ {"),
    "mistral": ("[TOOL_CALLS]", "get_weather[ARGS]"),
    "kimi_k2": ("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
    "deepseek_v3": (DEEPSEEK, "<｜tool▁call▁begin｜>"),
    "deepseek_v31": (DEEPSEEK, "<｜tool▁call▁begin｜>"),
    "qwen3_coder": ("<tool_call>", "<function=get_weather>"),
    "seed_oss": ("<seed:tool_call>", "<function=search-files>"),
    "nemotron": ("<TOOLCALL>", "[{"),
    "glm4": ("<tool_call>", "get_weather\n"),
    "minimax": ("<minimax:tool_call>", '<invoke name="get_weather">'),
    "gemma4": ("<|tool_call>", "call:get_weather{"),
    "functiongemma": ("<start_function_call>", "call:now{"),
    "gemma3": ("```tool_code", "print(get_weather("),
}
"""A marker, and the first words of a call after it."""
AGAIN = ("hermes", "mistral", "qwen3_coder", "seed_oss", "glm4", "gemma4", "functiongemma")
"""Formats with a marker before each call; in others the section of calls ends the output."""
GOOD = ("get_weather", '{"city": "Oslo", "days": 3}')


def answer(name: str, *calls: tuple[str, str]) -> str:
    begin, body, between = BODIES[name]
    written_out = [body.replace("NAME", tool).replace("GIVEN", arguments(name, given)) for tool, given in calls]
    return begin + between.join(written_out) + ENDS.get(name, "")


def arguments(name: str, given: str) -> str:
    """Return arguments in the format's syntax; values other than objects are returned unchanged."""
    if name not in FIELDS or not given.startswith("{") or given == "{":
        return given
    field, between = FIELDS[name]
    quote = QUOTES.get(name)
    return between.join(
        field.replace("KEY", key).replace(
            "VALUE", f"{quote}{value}{quote}" if quote is not None and isinstance(value, str) else json.dumps(value)
        )
        for key, value in json.loads(given).items()
    )


@pytest.mark.matrix(11)
@pytest.mark.parametrize("name", BODIES)
def test_what_is_valid(name: str, spelling: LLTokenizer, special_id: SpecialId) -> None:
    one, two = answer(name, GOOD), answer(name, GOOD, ("now", "{}"))
    for required in (True, False):
        for parallel in (True, False):
            source = FORMATS[name].grammar(TOOLS, special_id, required=required, parallel=parallel)
            assert takes(source, one, spelling, special_id)
            assert takes(source, two, spelling, special_id) == parallel
            assert takes(source, "It rains, {as} <ever>.", spelling, special_id) == (not required)
            assert takes(source, "", spelling, special_id) == (not required)


@pytest.mark.matrix(12)
@pytest.mark.parametrize("name", BODIES)
def test_a_document_in_place_of_calls(name: str, spelling: LLTokenizer, special_id: SpecialId) -> None:
    """A document is text, never a call. Calls that are bare objects cannot be combined with documents."""
    form = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    for parallel in (True, False):
        calls = FORMATS[name].grammar(TOOLS, special_id, required=True, parallel=parallel)
        if name in ("llama3", "gemma3_json"):
            with pytest.raises(ConstraintError, match="bare JSON"):
                or_document(calls, form)
            continue
        source = or_document(calls, form | {"additionalProperties": False})
        assert takes(source, answer(name, GOOD), spelling, special_id)
        document = '{"name": "Oslo"}'
        assert takes(source, document, spelling, special_id)
        for other in ("", "It rains.", "{}", '{"name": 3}', f"So: {document}", f"{document}{answer(name, GOOD)}"):
            assert not takes(source, other, spelling, special_id)
        assert "".join(map(str, read(FORMATS[name], TOOLS, [document]))) == document
        assert "".join(map(str, read(FORMATS[name], TOOLS, list(document)))) == document


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize(
    "call",
    [
        ("fly", "{}"),
        ("get_weather", "{}"),
        ("get_weather", '{"city": 3}'),
        ("get_weather", '{"city": "Oslo", "days": 100}'),
        ("get_weather", '{"city": "Oslo", "unit": "kelvin"}'),
        ("now", '{"a": 1}'),
        ("now", "[]"),
        ("now", "{"),
    ],
    ids=str,
)
@pytest.mark.matrix(62)
def test_what_is_not(name: str, call: tuple[str, str], spelling: LLTokenizer, special_id: SpecialId) -> None:
    if call == ("get_weather", '{"city": 3}') and QUOTES.get(name) == "":
        return  # the value is the text "3"
    text = answer(name, call)
    source = FORMATS[name].grammar(TOOLS, special_id, required=True, parallel=True)
    assert not takes(source, text, spelling, special_id)
    source = FORMATS[name].grammar(TOOLS, special_id, required=False, parallel=True)
    if takes(source, text, spelling, special_id):  # no tool has this name, so it is text
        assert not any(isinstance(part, tuple) for part in read(FORMATS[name], TOOLS, [text]))
        assert call[0] == "fly" or name == "glm4"  # its pattern allows the name `now[]`


@pytest.mark.parametrize("name", [name for name in BODIES if name not in BARE])
def test_a_call_within_text(name: str, spelling: LLTokenizer, special_id: SpecialId) -> None:
    for parallel in (True, False):
        source = FORMATS[name].grammar(TOOLS, special_id, required=False, parallel=parallel)
        assert takes(source, "I look.\n" + answer(name, GOOD), spelling, special_id)
        assert not takes(source, "I look.\n" + answer(name, ("get_weather", "{}")), spelling, special_id)


@pytest.mark.matrix(3)
@pytest.mark.parametrize("name", BODIES)
def test_what_a_grammar_lets_through_is_read_as_calls(name: str, spelling: LLTokenizer, special_id: SpecialId) -> None:
    chance = random.Random(name)
    schemas = {tool.name: tool.parameters for tool in TOOLS}
    seen = set()
    for _ in range(12):
        source = FORMATS[name].grammar(TOOLS, special_id, required=True, parallel=True)
        text = wander(Walk(source, spelling, special_id), chance)
        found = read(FORMATS[name], TOOLS, [text])
        assert found
        for part in found:
            assert isinstance(part, tuple), text
            seen.add(part[0])
            jsonschema.validate(json.loads(part[1]), schemas[part[0]])
        assert read(FORMATS[name], TOOLS, list(text)) == found
    assert len(seen) > 1


@pytest.mark.matrix(10)
@pytest.mark.parametrize("name", BEGINS)
def test_a_call_that_has_begun_in_text_is_valid(name: str, spelling: LLTokenizer, special_id: SpecialId) -> None:
    """A call starts with its first words, after optional white space; a marker alone is text, and may end an output."""
    chance = random.Random(name)
    schemas = {tool.name: tool.parameters for tool in TOOLS}
    marker, first = BEGINS[name]
    for lead in ("So: ", f"So, {marker} is it: "):
        for space in ("", " ", "\n\n"):
            walk = Walk(FORMATS[name].grammar(TOOLS, special_id, required=False, parallel=False), spelling, special_id)
            begin = f"{lead}{marker}{space}"
            assert walk.takes(begin) == len(begin)
            assert walk.may_end()
            assert walk.takes(first) == len(first)
            assert not walk.may_end()
            [text, call] = read(FORMATS[name], TOOLS, [begin + first + wander(walk, chance)])
            assert text == lead
            assert isinstance(call, tuple)
            jsonschema.validate(json.loads(call[1]), schemas[call[0]])


@pytest.mark.matrix(4)
@pytest.mark.parametrize("name", BEGINS)
def test_a_marker_in_words_is_text(name: str, spelling: LLTokenizer, special_id: SpecialId) -> None:
    """The grammar forces nothing after it, and the parser returns all of it as text, however the output is split."""
    marker, first = BEGINS[name]
    chance = random.Random(name)
    words = [
        marker,
        marker,
        "Wrap it in ",
        " tags",
        "`",
        ": ",
        "\n",
        ", then ",
        "fly",
        "get",
        "now?",
        "(",
        "}",
        "日本 ",
    ]
    for parallel in (True, False):
        source = FORMATS[name].grammar(TOOLS, special_id, required=False, parallel=parallel)
        for _ in range(25):
            text = "So " + "".join(chance.choice(words) for _ in range(chance.randrange(1, 9))) + "."
            assert takes(source, text, spelling, special_id), text
            for pieces in ([text], list(text)):
                assert read(FORMATS[name], TOOLS, pieces) == [text]
        both = f"So {marker} is a word. {answer(name, GOOD)}"
        assert takes(source, both, spelling, special_id)
        assert read(FORMATS[name], TOOLS, [both])[0] == f"So {marker} is a word. "
        more = name in AGAIN and parallel
        assert takes(source, f"{both} {marker}!", spelling, special_id) == more
        assert not takes(source, f"{both}{marker}{first}", spelling, special_id)


@pytest.mark.parametrize("name", BODIES)
def test_names_and_words_that_grammars_have_their_own_use_for(
    name: str, spelling: LLTokenizer, special_id: SpecialId
) -> None:
    tool = Tool("a.b-c", 'x"', {"properties": {"q": {"type": "string", "description": 'a ::= b %llguidance "\n/'}}})
    source = FORMATS[name].grammar([tool], special_id, required=True, parallel=False)
    assert takes(source, answer(name, ("a.b-c", '{"q": "::="}')), spelling, special_id)
    assert not takes(source, answer(name, ("a.b-c", "3")), spelling, special_id)


@pytest.mark.matrix(27)
@pytest.mark.parametrize("given", [{}, {"parameters": None}])
@pytest.mark.parametrize("name", BODIES)
def test_a_tool_without_parameters_is_called_with_an_empty_object(
    name: str, given: dict[str, None], spelling: LLTokenizer, special_id: SpecialId
) -> None:
    tool = FunctionDefinition(name="now", **given).tool()
    source = FORMATS[name].grammar([tool], special_id, required=True, parallel=False)
    assert not takes(source, answer(name, ("now", '{"a": 1}')), spelling, special_id)
    for number in range(4):
        [call] = read(FORMATS[name], [tool], [wander(Walk(source, spelling, special_id), random.Random(number))])
        assert isinstance(call, tuple)
        assert (call[0], json.loads(call[1])) == ("now", {})


@pytest.mark.parametrize("name", BODIES)
def test_no_tools(name: str, special_id: SpecialId) -> None:
    with pytest.raises(ConstraintError, match="no tool"):
        FORMATS[name].grammar([], special_id, required=True, parallel=True)


@pytest.mark.parametrize("name", BARE)
def test_bare_calls_may_stand_behind_white_space(name: str, spelling: LLTokenizer, special_id: SpecialId) -> None:
    source = FORMATS[name].grammar(TOOLS, special_id, required=False, parallel=False)
    assert takes(source, "\n " + answer(name, GOOD), spelling, special_id)
    assert not takes(source, "\n " + answer(name, ("get_weather", "{}")), spelling, special_id)


def test_objects_that_are_no_calls_are_text_for_llama(spelling: LLTokenizer, special_id: SpecialId) -> None:
    source = FORMATS["llama3"].grammar(TOOLS, special_id, required=False, parallel=True)
    assert takes(source, '{"city": "Oslo"}', spelling, special_id)
    assert takes(source, '{"name": "Alice", "parameters": {}}', spelling, special_id)
    assert not takes(source, '{"name": "now", "parameters": {"a": 1}}', spelling, special_id)
    assert takes(source, 'So {"name": "fly"', spelling, special_id)


HARMONY = "<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>GIVEN"
ANALYSIS = "<|channel|>analysis<|message|>I {look}.<|end|><|start|>assistant"
PREAMBLE = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>It rains."


def test_harmony_has_thoughts_and_words_in_messages_of_their_own(spelling: LLTokenizer, special_id: SpecialId) -> None:
    call = HARMONY.replace("NAME", GOOD[0]).replace("GIVEN", GOOD[1])
    wrong = HARMONY.replace("NAME", GOOD[0]).replace("GIVEN", "{}")
    for required in (True, False):
        source = FORMATS["harmony"].grammar(TOOLS, special_id, required=required, parallel=True)
        assert takes(source, call, spelling, special_id)
        assert takes(source, ANALYSIS + ANALYSIS + call, spelling, special_id)
        assert takes(source, ANALYSIS + PREAMBLE + call, spelling, special_id) == (not required)
        assert takes(source, ANALYSIS + FINAL, spelling, special_id) == (not required)
        for text in (wrong, ANALYSIS, ANALYSIS + wrong, "It rains.", ""):
            assert not takes(source, text, spelling, special_id)


def test_harmony_s_calls_are_of_their_schema(spelling: LLTokenizer, special_id: SpecialId) -> None:
    schemas = {tool.name: tool.parameters for tool in TOOLS}
    source = FORMATS["harmony"].grammar(TOOLS, special_id, required=True, parallel=True)
    for number in range(8):
        walk = Walk(source, spelling, special_id)
        begin = HARMONY.partition("NAME")[0]
        assert walk.takes(begin) == len(begin)
        [call] = read(FORMATS["harmony"], TOOLS, [begin + wander(walk, random.Random(number))])
        assert isinstance(call, tuple)
        jsonschema.validate(json.loads(call[1]), schemas[call[0]])
