"""The text of an output: tokens, stop strings and finish reasons together."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plimsoll_runtime.engine.protocol.messages import RequestOutput
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.text.output import OutputText, TextDelta
from plimsoll_runtime.text.tokenizer import Tokenizer


def answer(params: SamplingParams, tokenizer: Tokenizer, outputs: list[RequestOutput]) -> list[TextDelta]:
    text, seen = OutputText(params, tokenizer), []
    for output in outputs:
        seen.append(text.push(output))
        if seen[-1].finish_reason:
            break
    return seen


def steps(ids: list[int], finish: str = "length", **last: object) -> list[RequestOutput]:
    """Return one output per token, the last one finished."""
    outputs = [RequestOutput("r", [token_id]) for token_id in ids[:-1]]
    return [*outputs, RequestOutput("r", ids[-1:], finish_reason=finish, **last)]  # type: ignore[arg-type]


def total(deltas: list[TextDelta]) -> tuple[str, list[int], str | int | None]:
    return "".join(d.text for d in deltas), [i for d in deltas for i in d.token_ids], deltas[-1].stop_reason


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(text=st.text(alphabet="ab 😀.", min_size=1, max_size=30), cuts=st.lists(st.integers(1, 5), min_size=1))
def test_the_answer_is_the_same_however_the_steps_cut_it(byte_level: Tokenizer, text: str, cuts: list[int]) -> None:
    ids = byte_level.encode(text)
    params = SamplingParams(max_tokens=100, stop=(".", "a b", "😀😀"))
    one_by_one = answer(params, byte_level, steps(ids))
    batches, position, turn = [], 0, 0
    while position < len(ids):
        batches.append(ids[position : position + cuts[turn % len(cuts)]])
        position, turn = position + len(batches[-1]), turn + 1
    last = len(batches) - 1
    outputs = [RequestOutput("r", b, finish_reason="length" if i == last else None) for i, b in enumerate(batches)]
    together = answer(params, byte_level, outputs)
    assert total(together) == total(one_by_one)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(text=st.text(alphabet="ab 😀.", min_size=1, max_size=30), stop=st.booleans(), include=st.booleans())
def test_a_whole_answer_is_that_of_its_steps(any_tokenizer: Tokenizer, text: str, stop: bool, include: bool) -> None:
    ids = any_tokenizer.encode(f"a{text}")
    params = SamplingParams(max_tokens=100, stop_token_ids=(ids[-1],), include_stop_str_in_output=include)
    end, reason = (ids[-1], "stop") if stop else (None, "length")
    whole = RequestOutput("r", ids, finish_reason=reason, stop_token_id=end)
    one_by_one = answer(params, any_tokenizer, steps(ids, reason, stop_token_id=end))
    assert total(answer(params, any_tokenizer, [whole])) == total(one_by_one)


def test_a_stop_string_ends_the_answer_and_its_tokens(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("hello\n\nworld")
    deltas = answer(SamplingParams(stop=("\n\n",)), byte_level, [RequestOutput("r", ids)])
    assert (deltas[-1].text, deltas[-1].finish_reason, deltas[-1].stop_reason) == ("hello", "stop", "\n\n")
    assert byte_level.decode(deltas[-1].token_ids).endswith("\n\n")


def test_a_stop_string_is_kept_where_asked_for(byte_level: Tokenizer) -> None:
    params = SamplingParams(stop=("lo",), include_stop_str_in_output=True)
    deltas = answer(params, byte_level, steps(byte_level.encode("hello world")))
    assert "".join(d.text for d in deltas) == "hello"


def test_min_tokens_exempts_the_first_tokens_text(byte_level: Tokenizer) -> None:
    ids = [i for i in [byte_level.token_id("x"), byte_level.token_id(".")] * 3 if i is not None]
    deltas = answer(SamplingParams(stop=(".",), min_tokens=3), byte_level, steps(ids))
    assert "".join(d.text for d in deltas) == "x.x"
    assert sum(len(d.token_ids) for d in deltas) == 4
    assert deltas[-1].stop_reason == "."


def test_a_stop_token_shows_only_where_asked_for(byte_level: Tokenizer) -> None:
    x, dot = byte_level.token_id("x"), byte_level.token_id(".")
    assert x is not None
    assert dot is not None
    for include, text in ((False, "x"), (True, "x.")):
        params = SamplingParams(stop_token_ids=(dot,), include_stop_str_in_output=include)
        deltas = answer(params, byte_level, steps([x, dot], "stop", stop_token_id=dot))
        assert "".join(d.text for d in deltas) == text
        assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", dot)


def test_the_models_own_end_has_no_stop_reason(byte_level: Tokenizer) -> None:
    end = byte_level.token_id("</s>")
    assert end is not None
    deltas = answer(SamplingParams(), byte_level, steps([end], "stop", stop_token_id=end))
    assert deltas == [TextDelta("", [end], "stop", None)]


def test_held_text_is_given_out_when_the_length_ends_it(byte_level: Tokenizer) -> None:
    deltas = answer(SamplingParams(stop=("world!",)), byte_level, steps(byte_level.encode("hello wor")))
    assert "".join(d.text for d in deltas) == "hello wor"
    assert deltas[-1].finish_reason == "length"


START, END = "<|im_start|>", "<|im_end|>"


@pytest.fixture(params=["byte_level", "sentencepiece"])
def spelled(request: pytest.FixtureRequest) -> Tokenizer:
    """A tokenizer with special tokens."""
    found: Tokenizer = request.getfixturevalue(request.param)
    return found


def special_answer(tokenizer: Tokenizer, text: str, **params: object) -> tuple[str, str | int | None, int]:
    """Return text, stop reason and number of tokens of an output; special tokens in `text` are recognised."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    given = SamplingParams(max_tokens=100, **params)  # type: ignore[arg-type]
    found = total(answer(given, tokenizer, steps(ids)))
    return found[0].strip(), found[2], len(found[1])


def test_a_stop_that_is_a_special_token_ends_the_answer_there(spelled: Tokenizer) -> None:
    before = len(spelled.encode("one", add_special_tokens=False))
    for params in ({}, {"skip_special_tokens": False}):
        text, reason, tokens = special_answer(spelled, f"one{START}two", stop=(START, "two"), **params)
        assert (text, reason, tokens) == ("one", START, before + 1)
    text, reason, _ = special_answer(spelled, f"one{START}two", stop=(START,), include_stop_str_in_output=True)
    assert (text, reason) == (f"one{START}", START)
    text, reason, _ = special_answer(spelled, f"{START}one{END}two", stop=(END,), min_tokens=1)
    assert (text, reason) == ("one", END)
    text, reason, _ = special_answer(spelled, f"{START}one{END}two", stop=(START,), min_tokens=1)
    assert (text.replace(" ", ""), reason) == ("onetwo", None)


def test_special_tokens_within_a_stop_are_matched_and_others_are_not_in_the_way(spelled: Tokenizer) -> None:
    text, reason, _ = special_answer(spelled, f"one{START}two.{END}three", stop=(f".{END}",))
    assert (text.replace(" ", ""), reason) == ("onetwo", f".{END}")
    text, reason, _ = special_answer(spelled, f"one.{START}{END}three", stop=(f".{END}",))
    assert (text.replace(" ", ""), reason) == ("one.three", None)
    text, reason, _ = special_answer(spelled, f"a{START}b{END}c", stop=("ab", "a b", f"c{END}"))
    assert text == ""
    assert str(reason).replace(" ", "") == "ab"


def test_the_token_that_ends_the_answer_completes_a_stop(byte_level: Tokenizer) -> None:
    end = byte_level.token_id(END)
    ids = [*byte_level.encode("one."), end]
    for stop, text in ((f".{END}", "one"), (END, "one."), (f"..{END}", "one.")):
        last = {"stop_token_id": end}
        deltas = answer(SamplingParams(max_tokens=100, stop=(stop,)), byte_level, steps(ids, "stop", **last))  # type: ignore[arg-type]
        assert total(deltas) == (text, ids, None if stop.startswith("..") else stop)
        assert deltas[-1].finish_reason == "stop"
