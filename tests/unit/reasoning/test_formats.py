"""The parsed reasoning does not depend on how an output is split, and no text is held back longer than necessary."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tool_support.reading import pieces_of
from tool_support.thoughts import ANSWERS, Thoughtful, split

from plimsoll_runtime.reasoning.base import ReasoningFormat
from plimsoll_runtime.reasoning.registry import FORMATS
from plimsoll_runtime.tools.base import Part, Reasoning, Text

NAMES = [f"{answer.form}: {answer.says}" for answer in ANSWERS]


def test_every_format_has_answers() -> None:
    assert {answer.form for answer in ANSWERS} == set(FORMATS)
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize("answer", ANSWERS, ids=NAMES)
def test_whole_and_by_characters(answer: Thoughtful) -> None:
    form, expected = FORMATS[answer.form], (answer.thought, answer.said)
    assert split(form, [answer.text], opened=answer.opened) == expected
    assert split(form, answer.text, opened=answer.opened) == expected


@settings(deadline=None, max_examples=150)
@given(answer=st.sampled_from(ANSWERS), cuts=st.lists(st.integers(0, 200), max_size=10))
def test_in_random_pieces(answer: Thoughtful, cuts: list[int]) -> None:
    found = split(FORMATS[answer.form], pieces_of(answer.text, cuts), opened=answer.opened)
    assert found == (answer.thought, answer.said)


SPLICES = st.sampled_from(
    ["", "<", "</think>", "<think>", "\n", "<|channel|>", "<|end|>", "<|message|>", "x", "\ud800"]
)


@settings(deadline=None, max_examples=150)
@given(data=st.data(), answer=st.sampled_from(ANSWERS), splice=SPLICES, opened=st.booleans())
def test_whatever_a_model_writes(data: st.DataObject, answer: Thoughtful, splice: str, opened: bool) -> None:
    start = data.draw(st.integers(0, len(answer.text)))
    end = data.draw(st.integers(start, len(answer.text)))
    text = (
        answer.text[:start] + splice + answer.text[end:] + data.draw(st.sampled_from(["", *[a.text for a in ANSWERS]]))
    )
    form = FORMATS[answer.form]
    found = split(form, [text], opened=opened)
    assert split(form, text, opened=opened) == found
    assert (
        split(form, pieces_of(text, data.draw(st.lists(st.integers(0, len(text)), max_size=8))), opened=opened) == found
    )


def test_thoughts_and_words_stream() -> None:
    parser = FORMATS["think"].parser(opened=False)
    told: list[tuple[str, list[Part]]] = [
        ("<th", []),
        ("ink>\n", []),
        ("Hm", [Reasoning("Hm")]),
        (", <", [Reasoning(",")]),
        ("b>", [Reasoning(" <b>")]),
        ("\n</", []),
        ("think>", []),
        ("\n\n", []),
        ("Two", [Text("Two")]),
        (" <", [Text(" <")]),
    ]
    for piece, parts in told:
        assert list(parser.push(piece)) == parts
    assert list(parser.finish()) == []


def test_harmony_streams() -> None:
    parser = FORMATS["harmony"].parser(opened=False)
    for piece in ("<|channel|>", "analysis", "<|message|>"):
        assert list(parser.push(piece)) == []
    assert list(parser.push("Hm")) == [Reasoning("Hm")]
    assert list(parser.push(".<|end|><|start|>assistant<|channel|>final<|message|>Tw")) == [Reasoning("."), Text("Tw")]
    assert list(parser.push("o")) == [Text("o")]


PROMPTS = [
    ("think", "<｜Assistant｜><think>\n", True),
    ("think", "<|im_start|>assistant\n", False),
    ("think", "<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
    ("think", "what does <think> mean?<|im_end|>\n<|im_start|>assistant\n", False),
    ("seed_oss", "<seed:bos>assistant\n<seed:think>", True),
    ("seed_oss", "<seed:bos>assistant\n<seed:think><seed:cot_budget_reflect>", True),
    ("harmony", "<|start|>assistant", False),
]


@pytest.mark.parametrize(("name", "prompt", "opened"), PROMPTS)
def test_prompts_that_open_a_thought(name: str, prompt: str, opened: bool) -> None:
    assert FORMATS[name].opened_by(prompt) == opened


@pytest.mark.parametrize("name", FORMATS)
def test_marks_are_what_parsers_read(name: str) -> None:
    form: ReasoningFormat = FORMATS[name]
    marks = form.marks
    after = f"{marks.then[0]}<|message|>" if marks.then else ""
    text = f"{marks.begin}Hm.{marks.closing}{after}{marks.gap}Two."
    assert split(form, [text], opened=False) == ("Hm.", "Two.")
