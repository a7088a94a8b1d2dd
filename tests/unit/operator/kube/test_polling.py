"""Polling a process continues after any response, and failures are reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from operator_support import virtual_time

from plimsoll_operator.kube.polling import Polling, UnforeseenError
from plimsoll_operator.pools.hosts.client import _message
from plimsoll_operator.pools.hosts.report import BadReportError, decode_report
from plimsoll_operator.scaling.demand import BadDemandError, decode_demand

NOT_UTF8 = b'{"error": {"message": "\xff"}, "instance": "\xff"}'
NESTED = b'{"other": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@dataclass(frozen=True)
class Answer:
    instance: str
    sequence: int


class Ended(BaseException):
    """Ends the test's polling."""


def polled(answers: list[Answer | Exception], take: Callable[[Answer], None]) -> tuple[list[Exception], list[int]]:
    """Return the failures, and the sequences of all requests, until there are no more responses."""
    failed: list[Exception] = []
    asked: list[int] = []

    async def ask(after: int) -> Answer:
        asked.append(after)
        if not answers:
            raise Ended
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def sleep(seconds: float) -> None:
        assert seconds > 0

    with pytest.raises(Ended):
        virtual_time.run(Polling((OSError,), 5.0, sleep).run("it", ask, take, failed.append))
    return failed, asked


def test_what_nobody_thought_of_is_told_and_asking_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    taken: list[Answer] = []
    answers: list[Answer | Exception] = [Answer("a", 1), KeyError("odd"), Answer("a", 2), OSError("away")]
    failed, asked = polled([*answers], taken.append)
    assert [type(error) for error in failed] == [UnforeseenError, OSError]
    assert (taken, asked) == ([Answer("a", 1), Answer("a", 2)], [-1, 1, -1, 2, -1])
    assert "polling it failed" in caplog.text
    assert "KeyError: 'odd'" in caplog.text


def test_an_answer_that_cannot_be_taken_is_told_and_asking_goes_on() -> None:
    taken: list[int] = []

    def take(answer: Answer) -> None:
        taken.append(answer.sequence)
        if answer.sequence == 1:
            raise ZeroDivisionError

    failed, asked = polled([Answer("a", 1), Answer("a", 2)], take)
    assert [type(error) for error in failed] == [UnforeseenError]
    assert (taken, asked) == ([1, 2], [-1, -1, 2])


@pytest.mark.parametrize("data", [NOT_UTF8, NESTED, b"{"])
def test_what_cannot_be_decoded_is_a_bad_answer(data: bytes) -> None:
    with pytest.raises(BadReportError, match="its report is not valid"):
        decode_report(data)
    with pytest.raises(BadDemandError, match="the response to GET /demand is not valid"):
        decode_demand(data)


@pytest.mark.parametrize("data", [NOT_UTF8, b'{"error": {"message": ' + NESTED + b"}}"])
def test_nor_does_an_error_without_readable_words_break_anything(data: bytes) -> None:
    assert _message(500, data).startswith('it returned 500: {"')
