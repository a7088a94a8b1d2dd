"""Legacy completions: every kind of prompt, echo, scoring, streams."""

import asyncio
from typing import Any

import openai
import pytest

from plimsoll_runtime.engine.protocol.messages import RequestOutput
from plimsoll_runtime.text.output import OutputText, TextDelta

pytestmark = pytest.mark.asyncio(loop_scope="module")

BOS = 256


async def create(running: Any, **body: Any) -> Any:
    return await running.openai().completions.create(model="fake", **body)


async def test_a_text(running: Any) -> None:
    answer = await create(running, prompt="Hi")
    assert (answer.object, answer.choices[0].text, answer.choices[0].finish_reason) == (
        "text_completion",
        "Hello!",
        "stop",
    )
    assert running.engine.asked[0].prompt_token_ids == [BOS, *b"Hi"]
    assert running.engine.asked[0].context.params.max_tokens == 16
    assert running.engine.asked[0].context.params.stop == ()


async def test_every_kind_of_prompt(running: Any) -> None:
    for prompt, ids in (
        (["a", "bc"], [[BOS, 97], [BOS, 98, 99]]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        (["a", [5]], [[BOS, 97], [5]]),
        ("", [[BOS]]),
    ):
        running.engine.asked.clear()
        answer = await create(running, prompt=prompt)
        assert [request.prompt_token_ids for request in running.engine.asked] == ids
        assert [choice.index for choice in answer.choices] == list(range(len(ids)))
        assert answer.usage.prompt_tokens == sum(map(len, ids))


async def test_no_special_tokens_where_none_are_wanted(running: Any) -> None:
    await create(running, prompt="Hi", extra_body={"add_special_tokens": False})
    assert running.engine.asked[0].prompt_token_ids == [*b"Hi"]


async def test_several_answers_for_several_prompts(running: Any) -> None:
    answer = await create(running, prompt=["a", "b"], n=2, best_of=2)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert [r.prompt_token_ids[1] for r in sorted(running.engine.asked, key=lambda r: r.request_id)] == [
        97,
        97,
        98,
        98,
    ]
    assert answer.usage.prompt_tokens == 4


@pytest.mark.parametrize("n", [1, 2])
async def test_an_error_that_nobody_foresaw_ends_the_request(
    running: Any, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def push(self: OutputText, output: RequestOutput) -> TextDelta:
        raise RuntimeError("nobody foresaw this")

    monkeypatch.setattr(OutputText, "push", push)
    with pytest.raises(openai.InternalServerError):
        async with asyncio.timeout(60):
            await create(running, prompt="a", n=n)
    async with running.http() as http:
        assert 'plimsoll_answers_waiting{model="fake",namespace=""} 0.0' in (await http.get("/metrics")).text


async def test_logprobs(running: Any) -> None:
    running.engine.answer = b"AB"
    answer = await create(running, prompt="Hi", logprobs=2, max_tokens=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs.tokens == ["A", "B"]
    assert logprobs.token_logprobs == pytest.approx([-0.65, -0.66])
    assert logprobs.top_logprobs[0] == {"A": pytest.approx(-0.65), "B": pytest.approx(-1.65)}
    assert logprobs.text_offset == [0, 1]


async def test_a_prompt_is_scored(running: Any) -> None:
    for max_tokens in (0, 1):
        running.engine.answer = b"Z"
        answer = await create(running, prompt="Hié", echo=True, logprobs=1, max_tokens=max_tokens)
        choice = answer.choices[0]
        assert choice.text == "Hié" + "Z" * max_tokens
        assert choice.finish_reason == "length"
        expected = ["<s>", "H", "i", "bytes:\\xc3", "bytes:\\xa9", *["Z"] * max_tokens]
        assert choice.logprobs.tokens == expected
        assert choice.logprobs.token_logprobs[0] is None
        assert choice.logprobs.top_logprobs[0] is None
        assert choice.logprobs.token_logprobs[1:3] == pytest.approx([-0.72, -1.05])
        assert choice.logprobs.text_offset == [0, 0, 1, 2, 2, *[3] * max_tokens]
        assert answer.usage.completion_tokens == max_tokens
        assert running.engine.asked[-1].context.params.prompt_logprobs == 1


@pytest.mark.parametrize(
    ("prompt", "skipped", "text", "offsets"),
    [
        ("a<|user|>b</s>", True, "a<|user|>b</s>Zy", [0, 0, 1, 9, 10, 14, 15]),
        ("<s>", True, "<s>Zy", [0, 0, 3, 4]),
        ("é<s><|user|> x", False, "é<s><|user|> xZy", [0, 0, 0, 1, 4, 12, 13, 14, 15]),
        ([97, 258, 98], True, "abZy", [0, 1, 1, 2, 3]),
        ([97, 258, 98], False, "a<|user|>bZy", [0, 1, 9, 10, 11]),
        ([256, 195, 169, 257], True, "éZy", [0, 0, 0, 1, 1, 2]),
    ],
)
async def test_offsets_point_into_the_text_that_is_returned(
    running: Any, prompt: Any, skipped: bool, text: str, offsets: list[int]
) -> None:
    """Special tokens written in a prompt are part of its text; those of token ids depend on `skip_special_tokens`."""
    running.engine.answer = b"Zy"
    body = {"extra_body": {"skip_special_tokens": skipped}, "max_tokens": 2, "logprobs": 0}
    choice = (await create(running, prompt=prompt, echo=True, **body)).choices[0]
    assert (choice.text, choice.logprobs.text_offset) == (text, offsets)


async def test_echo_without_logprobs(running: Any) -> None:
    answer = await create(running, prompt=[*b"Hi"], echo=True)
    assert answer.choices[0].text == "HiHello!"
    assert answer.choices[0].logprobs is None
    assert running.engine.asked[0].context.params.prompt_logprobs is None


async def test_prompt_logprobs_by_token(running: Any) -> None:
    answer = await create(running, prompt="H", extra_body={"prompt_logprobs": 1})
    assert answer.choices[0].model_extra["prompt_logprobs"] == [
        None,
        {"72": {"logprob": pytest.approx(-0.72), "rank": 1, "decoded_token": "H"}},
    ]


async def test_more_scores_than_an_answer_may_hold_are_refused(running: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plimsoll_runtime.api.generation.prompts.MAX_PROMPT_SCORES", 24)
    asked = {"prompt": [[72, 105], [72, 105]], "n": 2, "extra_body": {"prompt_logprobs": 2}}
    assert len((await create(running, **asked)).choices) == 4
    with pytest.raises(
        openai.BadRequestError, match="32 log probabilities in 2 choices, above the limit of 24"
    ) as refused:
        await create(running, **asked | {"extra_body": {"prompt_logprobs": 3}})
    assert refused.value.param == "prompt_logprobs"
    with pytest.raises(openai.BadRequestError, match="25 log probabilities in 1 choice,") as refused:
        await create(running, prompt=[72] * 5, echo=True, logprobs=4)
    assert refused.value.param == "logprobs"


async def test_minus_infinity_has_a_number(running: Any) -> None:
    running.engine.answer = b"\x00"
    answer = await create(running, prompt="H", logprobs=0, max_tokens=1)
    assert answer.choices[0].logprobs.token_logprobs == [-9999.0]


async def test_a_stream(running: Any) -> None:
    stream = await create(running, prompt=["a", "b"], stream=True, echo=True, stream_options={"include_usage": True})
    texts, ends, usage = {0: "", 1: ""}, {}, None
    async for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            if choice.finish_reason:
                ends[choice.index] = choice.finish_reason
    assert texts == {0: "aHello!", 1: "bHello!"}
    assert ends == {0: "stop", 1: "stop"}
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (4, 14)


async def test_every_event_has_the_usage_so_far(running: Any) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    stream = await create(running, prompt="a", stream=True, stream_options=options)
    used = [chunk.usage async for chunk in stream]
    assert all(u.prompt_tokens == 2 and u.total_tokens == 2 + u.completion_tokens for u in used)
    assert [u.completion_tokens for u in used] == [1, 2, 3, 4, 5, 6, 7, 7]


async def test_a_streams_logprobs_go_on_from_chunk_to_chunk(running: Any) -> None:
    stream = await create(running, prompt="a", stream=True, echo=True, logprobs=0, max_tokens=3)
    parts = [chunk.choices[0].logprobs async for chunk in stream]
    assert [t for part in parts for t in part.tokens] == ["<s>", "a", "H", "e", "l"]
    assert [o for part in parts for o in part.text_offset] == [0, 0, 1, 2, 3]


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"prompt": None}, "prompt", "must be a text, a list"),
    ({"prompt": []}, "prompt", "must be a text, a list"),
    ({"prompt": {}}, "prompt", "must be a text, a list"),
    ({"prompt": [1, "a"]}, "prompt", "must not mix"),
    ({"prompt": [1, 2.5]}, "prompt", "must not mix"),
    ({"prompt": [True]}, "prompt", "must not mix"),
    ({"prompt": [-1]}, "prompt", "must not mix"),
    ({"prompt": [[]]}, "prompt", "it is empty (0 tokens)"),
    ({"prompt": [264]}, "prompt", "264 is not in the vocabulary of 264"),
    ({"prompt": [10**30]}, "prompt", "must not mix"),
    ({"prompt": ["a"] * 2049}, "prompt", "at most 2048 prompts"),
    ({"prompt": ["a"] * 100, "n": 100}, "n", "more than the limit of 4096 choices"),
    ({"best_of": 2, "n": 3}, "best_of", "at least 'n' (3)"),
    ({"best_of": 3, "stream": True}, "best_of", "cannot be streamed"),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "must be a number of tokens, or -1"),
    ({"bad_words": [""]}, "bad_words[0]", "at least 1 character"),
    ({"bad_words": ["a"], "response_format": {"type": "json_object"}}, "bad_words", "both cannot be enforced"),
    ({"suffix": "end"}, "suffix", "not supported"),
    ({"logprobs": 21}, "logprobs", "less than or equal to 20"),
    ({"logprobs": True}, "logprobs", "valid integer"),
    ({"echo": 1}, "echo", "valid boolean"),
]


async def test_what_cannot_be_done_is_refused_with_its_name(running: Any) -> None:
    async with running.http() as http:
        for change, param, told in REFUSED:
            answer = await http.post("/v1/completions", json={"model": "fake", "prompt": "a"} | change)
            error = answer.json()["error"]
            assert (answer.status_code, error["type"]) == (400, "invalid_request_error"), (change, answer.text)
            assert error["param"] == param, change
            assert told in error["message"], change
    assert running.engine.asked == []
