"""Text is streamed: only a possible start of a marker is held back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tool_support.transcripts import TOOLS

from plimsoll_runtime.tools.base import Arguments, CallBegins, Part, Text
from plimsoll_runtime.tools.formats import hermes, mistral
from plimsoll_runtime.tools.registry import FORMATS


def said(parts: list[Part]) -> str:
    assert all(isinstance(part, Text) for part in parts)
    return "".join(part.text for part in parts if isinstance(part, Text))


@settings(deadline=None, max_examples=80)
@given(st.lists(st.text(alphabet='<tol_ca>l {\n"x', max_size=5), max_size=12))
def test_nothing_else_is_held_back(pieces: list[str]) -> None:
    parser = hermes.HERMES.parser(TOOLS)
    written = given_out = ""
    for piece in pieces:
        written += piece
        given_out += said(list(parser.push(piece)))
        held = written.removeprefix(given_out)
        assert written.startswith(given_out)
        assert "<tool_call>".startswith(held.lstrip() if not given_out else held)
    assert given_out + said(list(parser.finish())) == written


@pytest.mark.parametrize("name", FORMATS)
def test_words_stream(name: str) -> None:
    parser = FORMATS[name].parser(TOOLS)
    for word in ("The", " weather", " is", " fine", ",", " 3 > 2", ".\n\n", "So"):
        assert parser.push(word) == [Text(word)]
    assert list(parser.finish()) == []


def test_a_call_is_told_when_its_arguments_begin_and_they_stream() -> None:
    parser = hermes.HERMES.parser(TOOLS)
    assert list(parser.push('<tool_call>\n{"name": "get_weather", "arguments": ')) == []
    assert list(parser.push("{")) == [CallBegins(0, "get_weather"), Arguments(0, "{")]
    assert list(parser.push('"city": "Os')) == [Arguments(0, '"city": "Os')]
    assert list(parser.push('lo"}}')) == [Arguments(0, 'lo"}')]
    assert list(parser.push("\n</tool_call>\nDone")) == [Text("\nDone")]


def test_what_cannot_be_a_name_is_given_back_at_once() -> None:
    parser = mistral.MISTRAL.parser(TOOLS)
    assert list(parser.push("[TOOL_CALLS]" + "x" * 256)) == []
    assert said(list(parser.push("x"))) == "[TOOL_CALLS]" + "x" * 257


def test_numbers_of_more_digits_than_python_reads() -> None:
    parser = hermes.HERMES.parser(TOOLS)
    text = '<tool_call>{"arguments": {"days": ' + "9" * 5000 + '}, "name": "get_weather"}</tool_call>'
    assert said([*parser.push(text), *parser.finish()]) == text
