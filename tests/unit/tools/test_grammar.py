"""Grammars let valid answers through and no others; whatever they let through is read back as calls."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import jsonschema
import pytest
from tool_support.markers import END, SPECIAL
from tool_support.reading import Found, read
from tool_support.transcripts import TOOLS

from plimsoll_runtime.engine.constraint import Constraint, ConstraintError
from plimsoll_runtime.structured.grammar import limits, written
from plimsoll_runtime.tools.choose import FORMATS
from plimsoll_runtime.tools.parts import Tool

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

SpecialId = Callable[[str], int | None]
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
}
"""What stands before calls, a call, and what stands between two."""
ENDS = {
    "granite": "]",
    "phi4": "]<|/tool_call|>",
    "kimi_k2": "<|tool_calls_section_end|>",
    "deepseek_v3": "<｜tool▁calls▁end｜>",
    "deepseek_v31": "<｜tool▁calls▁end｜>",
}
GOOD = ("get_weather", '{"city": "Oslo", "days": 3}')


def answer(name: str, *calls: tuple[str, str]) -> str:
    begin, body, between = BODIES[name]
    written_out = [body.replace("NAME", tool).replace("GIVEN", given) for tool, given in calls]
    return begin + between.join(written_out) + ENDS.get(name, "")


ENDING = set(b'"}],')
PLAIN = set(b"abgs019{}[]<;\\n")


class Walk:
    """One answer under a grammar, token by token."""

    def __init__(self, source: str, spelling: LLTokenizer, special_id: SpecialId) -> None:
        from llguidance import LLMatcher

        self.special_id = special_id
        self.inner: LLMatcher = LLMatcher(spelling, written(Constraint.grammar(source)), log_level=0, limits=limits())
        assert not self.inner.is_error(), self.inner.get_error()

    def takes(self, text: str) -> int:
        """How many characters of a text the grammar takes."""
        at = 0
        for token, length in spelled(text, self.special_id):
            if not self.inner.consume_token(token):
                return at
            at += length
        return at

    def may_end(self) -> bool:
        return bool(self.inner.is_accepting())

    def allowed(self) -> list[int]:
        mask = self.inner.compute_bitmask()
        return [token for token in range(8 * len(mask)) if mask[token // 8] >> (token % 8) & 1]


def spelled(text: str, special_id: SpecialId) -> list[tuple[int, int]]:
    """Tokens, and how many characters of the text each stands for (a character's last byte for all of it)."""
    found: list[tuple[int, int]] = []
    for piece in re.split(r"(<[|｜][^<>]+[|｜]>|\[[A-Z_]+\])", text):
        token = special_id(piece)
        if token is not None:
            found.append((token, len(piece)))
            continue
        for char in piece:
            data = char.encode()
            found += [(byte, 0) for byte in data[:-1]] + [(data[-1], 1)]
    return found


def takes(source: str, text: str, spelling: LLTokenizer, special_id: SpecialId) -> bool:
    """Whether a grammar takes the whole of a text, and it may end there."""
    walk = Walk(source, spelling, special_id)
    return walk.takes(text) == len(text) and walk.may_end()


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
def test_what_is_not(name: str, call: tuple[str, str], spelling: LLTokenizer, special_id: SpecialId) -> None:
    for required in (True, False):
        source = FORMATS[name].grammar(TOOLS, special_id, required=required, parallel=True)
        assert not takes(source, answer(name, call), spelling, special_id)


@pytest.mark.parametrize("name", [name for name in BODIES if name != "llama3"])
def test_a_call_within_text(name: str, spelling: LLTokenizer, special_id: SpecialId) -> None:
    for parallel in (True, False):
        source = FORMATS[name].grammar(TOOLS, special_id, required=False, parallel=parallel)
        assert takes(source, "I look.\n" + answer(name, GOOD), spelling, special_id)
        assert not takes(source, "I look.\n" + answer(name, ("fly", "{}")), spelling, special_id)


def wander(walk: Walk, chance: random.Random) -> str:
    """An answer that a grammar lets through: letters, digits and what ends things, the latter more often."""
    taken: list[int] = []
    for _ in range(4000):
        allowed = walk.allowed()
        if allowed == [END] or (END in allowed and chance.random() < 0.3):
            break
        ending = [token for token in allowed if token in ENDING] if chance.random() < 0.4 else []
        plain = [token for token in allowed if token in PLAIN or token > END]
        token = chance.choice(ending or plain or [token for token in allowed if token != END])
        assert walk.inner.consume_token(token)
        taken.append(token)
    else:
        raise AssertionError("it does not end")
    return text_of(taken, walk.special_id)


def text_of(tokens: Sequence[int], special_id: SpecialId) -> str:
    return b"".join(bytes([token]) if token < END else SPECIAL[token - END].encode() for token in tokens).decode()


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


@pytest.mark.parametrize("name", [name for name in BODIES if name != "llama3"])
def test_a_call_that_has_begun_in_text_is_valid(name: str, spelling: LLTokenizer, special_id: SpecialId) -> None:
    chance = random.Random(name)
    for _ in range(3):
        source = FORMATS[name].grammar(TOOLS, special_id, required=False, parallel=False)
        walk = Walk(source, spelling, special_id)
        begin = "So: " + BODIES[name][0].removesuffix("[")
        assert walk.takes(begin) == len(begin)
        assert not walk.may_end()
        found: Found = read(FORMATS[name], TOOLS, [begin + wander(walk, chance)])
        assert found[0] == "So: "
        assert isinstance(found[1], tuple)
        json.loads(found[1][1])


@pytest.mark.parametrize("name", BODIES)
def test_names_and_words_that_grammars_have_their_own_use_for(
    name: str, spelling: LLTokenizer, special_id: SpecialId
) -> None:
    tool = Tool("a.b-c", 'x"', {"properties": {"q": {"type": "string", "description": 'a ::= b %llguidance "\n/'}}})
    source = FORMATS[name].grammar([tool], special_id, required=True, parallel=False)
    assert takes(source, answer(name, ("a.b-c", '{"q": "::="}')), spelling, special_id)
    assert not takes(source, answer(name, ("a.b-c", "3")), spelling, special_id)


@pytest.mark.parametrize("name", BODIES)
def test_no_tools(name: str, special_id: SpecialId) -> None:
    with pytest.raises(ConstraintError, match="no tool"):
        FORMATS[name].grammar([], special_id, required=True, parallel=True)


def test_objects_that_are_no_calls_are_text_for_llama(spelling: LLTokenizer, special_id: SpecialId) -> None:
    source = FORMATS["llama3"].grammar(TOOLS, special_id, required=False, parallel=True)
    assert takes(source, '{"city": "Oslo"}', spelling, special_id)
    assert not takes(source, '{"name": "fly", "parameters": {}}', spelling, special_id)
    assert takes(source, 'So {"name": "fly"', spelling, special_id)


@pytest.mark.parametrize("name", sorted(FORMATS.keys() - BODIES.keys()))
def test_what_cannot_be_enforced_is_refused(name: str, special_id: SpecialId) -> None:
    with pytest.raises(ConstraintError, match=f"the format {name} are read, and cannot be enforced"):
        FORMATS[name].grammar(TOOLS, special_id, required=True, parallel=True)
