"""The questions for the demo model and their grading."""

from __future__ import annotations

import pytest

from first_answers.questions import QUESTIONS, Question
from plimsoll_runtime.weights.sources.demo import EXAMPLES


def test_no_question_gives_its_answer_away() -> None:
    assert len({question.text for question in QUESTIONS}) == 20
    assert not [question.text for question in QUESTIONS if question.right(question.text)]


def test_the_examples_of_the_demos_template_give_none_away() -> None:
    shown = [text for example in EXAMPLES for text in example]
    assert not [(question.text, text) for question in QUESTIONS for text in shown if question.right(text)]
    assert not {question.text for question in QUESTIONS} & set(shown)


@pytest.mark.parametrize(
    ("answer", "right"),
    [("It is Paris.", True), ("Paris", True), ("paris", False), ("", False), ("Par is", False), ("Lyon", False)],
)
def test_an_answer_is_right_if_it_contains_a_spelling_exactly(answer: str, right: bool) -> None:
    assert Question("What is the capital of France?", ("Paris",)).right(answer) is right


def test_each_spelling_counts() -> None:
    water = Question("What is the chemical formula of water?", ("H2O", "H₂O"))
    assert water.right("It is H₂O.")
    assert water.right("H2O")
    assert not water.right("HO")
