"""The queue limit: requests beyond it are refused immediately, in words that clients and the gateway understand."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import openai
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from plimsoll_runtime.api.http.errors import ApiError
from plimsoll_runtime.api.server.queue_limit import DepartureRate, QueueLimit, QueueReservation

LIMIT = 3
HELLO: list[Any] = [{"role": "user", "content": "Hi"}]


@pytest.fixture
async def small(run_server: Any) -> AsyncIterator[Any]:
    """A server on which three choices may wait, with a paused engine."""
    async with run_server(max_waiting=LIMIT) as running:
        running.engine.pause()
        yield running


async def wait_for(running: Any, answers: int) -> None:
    await running.engine.until(lambda: len(running.engine.running) == answers)


async def room_for_all(running: Any) -> None:
    """Check that no choice is counted as waiting."""
    async with asyncio.timeout(60):
        while running.server.state.models.model.room.waiting:
            await asyncio.sleep(0)


async def metrics(running: Any) -> str:
    async with running.http() as http:
        return str((await http.get("/metrics")).text)


@pytest.mark.matrix(2)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("endpoint", ["chat", "completions"])
async def test_one_more_than_may_wait_is_told_to_come_back(small: Any, endpoint: str, stream: bool) -> None:
    client = small.openai()
    waiting = [asyncio.create_task(client.completions.create(model="fake", prompt="a")) for _ in range(LIMIT)]
    await wait_for(small, LIMIT)
    one_more: Any = {
        "chat": partial(client.chat.completions.create, messages=HELLO),
        "completions": partial(client.completions.create, prompt="b"),
    }[endpoint]
    with pytest.raises(openai.InternalServerError, match=r"overloaded: 3 choices wait.*the limit is 3") as caught:
        await one_more(model="fake", stream=stream)
    assert (caught.value.status_code, caught.value.code) == (503, "overloaded")
    assert caught.value.response.headers["retry-after"] == "5"
    assert len(small.engine.asked) == LIMIT
    told = await metrics(small)
    assert 'plimsoll_refused_total{model="fake",namespace=""} 1.0' in told
    assert 'plimsoll_answers_waiting{model="fake",namespace=""} 3.0' in told
    small.engine.resume()
    assert [answer.choices[0].text for answer in await asyncio.gather(*waiting)] == ["Hello!"] * LIMIT
    assert 'plimsoll_answers_waiting{model="fake",namespace=""} 0.0' in await metrics(small)


async def test_an_answer_that_has_begun_waits_no_more(small: Any) -> None:
    client = small.openai()
    small.engine.answer = b"a" * 200
    small.engine.resume()
    streams = [await client.completions.create(model="fake", prompt="a", stream=True) for _ in range(2 * LIMIT)]
    for stream in streams:
        await anext(aiter(stream))
    small.engine.pause()
    assert 'plimsoll_answers_waiting{model="fake",namespace=""} 0.0' in await metrics(small)
    small.engine.resume()
    for stream in streams:
        await stream.close()


async def test_who_hangs_up_makes_room(small: Any) -> None:
    async with small.http() as http:
        body = {"model": "fake", "prompt": "a", "n": LIMIT}
        hung_up = asyncio.create_task(http.post("/v1/completions", json=body))
        await wait_for(small, LIMIT)
        hung_up.cancel()
        await asyncio.gather(hung_up, return_exceptions=True)
        await room_for_all(small)
    assert 'plimsoll_answers_waiting{model="fake",namespace=""} 0.0' in await metrics(small)


async def test_several_answers_need_as_many_seats(small: Any) -> None:
    client = small.openai()
    two = asyncio.create_task(client.completions.create(model="fake", prompt="a", n=2))
    await wait_for(small, 2)
    with pytest.raises(openai.InternalServerError, match="overloaded"):
        await client.completions.create(model="fake", prompt=["b", "c"])
    one = asyncio.create_task(client.completions.create(model="fake", prompt="d"))
    await wait_for(small, LIMIT)
    small.engine.resume()
    assert len((await two).choices) == 2
    assert len((await one).choices) == 1


async def test_more_at_once_than_ever_fit_is_a_mistake_of_the_request(small: Any) -> None:
    with pytest.raises(openai.BadRequestError, match=r"asks for 4 choices.*--max-waiting\); ask for fewer") as caught:
        await small.openai().completions.create(model="fake", prompt=["a", "b"], n=2)
    assert (caught.value.param, small.engine.asked) == ("n", [])
    assert 'plimsoll_refused_total{model="fake",namespace=""} 0.0' in await metrics(small)


async def test_a_client_of_openais_tries_again_by_itself(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client = small.openai().with_options(max_retries=1)
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        small.engine.resume()
        await waiting

    waiting = asyncio.create_task(small.openai().completions.create(model="fake", prompt="a", n=LIMIT))
    await wait_for(small, LIMIT)
    monkeypatch.setattr("openai._base_client.anyio.sleep", sleep)
    assert (await client.completions.create(model="fake", prompt="b")).choices[0].text == "Hello!"
    assert waits == [5.0]


@pytest.fixture
async def narrow(run_server: Any) -> AsyncIterator[Any]:
    """A server on which prompts of thirty tokens may wait, with a paused engine."""
    async with run_server(max_waiting_tokens=30) as running:
        running.engine.pause()
        yield running


async def test_prompts_that_wait_count_by_their_tokens(narrow: Any) -> None:
    client = narrow.openai()
    prompts = [[1] * 12, [2] * 12]
    waiting = [asyncio.create_task(client.completions.create(model="fake", prompt=p)) for p in prompts]
    await wait_for(narrow, 2)
    with pytest.raises(openai.InternalServerError, match=r"prompts of 24 tokens wait.*the limit is 30 ") as caught:
        await client.completions.create(model="fake", prompt=[3] * 7)
    assert (caught.value.status_code, caught.value.code) == (503, "overloaded")
    assert caught.value.response.headers["retry-after"] == "5"
    assert 'plimsoll_waiting_tokens{model="fake",namespace=""} 24.0' in await metrics(narrow)
    assert 'plimsoll_refused_total{model="fake",namespace=""} 1.0' in await metrics(narrow)
    narrow.engine.resume()
    await asyncio.gather(*waiting)
    await client.completions.create(model="fake", prompt=[3] * 7)
    assert 'plimsoll_waiting_tokens{model="fake",namespace=""} 0.0' in await metrics(narrow)


async def test_a_prompt_counts_once_for_all_its_answers(narrow: Any) -> None:
    client = narrow.openai()
    many = asyncio.create_task(client.completions.create(model="fake", prompt=[1] * 20, n=16))
    await wait_for(narrow, 16)
    assert 'plimsoll_waiting_tokens{model="fake",namespace=""} 20.0' in await metrics(narrow)
    asked = narrow.engine.asked
    assert len({id(request.prompt_token_ids) for request in asked}) == 1
    assert all(request.shares_prompt for request in asked)
    narrow.engine.resume()
    assert len((await many).choices) == 16


async def test_prompts_that_never_fit_are_a_mistake_of_the_request(narrow: Any) -> None:
    with pytest.raises(openai.BadRequestError, match=r"have 32 tokens.*--max-waiting-tokens\); send fewer") as caught:
        await narrow.openai().completions.create(model="fake", prompt=[[1] * 16, [2] * 16])
    assert (caught.value.param, narrow.engine.asked) == ("prompt", [])


class RoomMachine(RuleBasedStateMachine):
    """Requests arrive, their choices start in any order, and they end at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.room = QueueLimit(8, 100)
        self.inside: list[tuple[QueueReservation, dict[int, int], dict[int, int]]] = []

    @rule(lengths=st.lists(st.integers(1, 101), min_size=1, max_size=3), n=st.integers(1, 3))
    def come(self, lengths: list[int], n: int) -> None:
        prompts = dict(enumerate(lengths))
        answers = {prompt * n + turn: prompt for prompt in prompts for turn in range(n)}
        if self.room.waiting + len(answers) > 8 or self.room.waiting_tokens + sum(lengths) > 100:
            with pytest.raises(ApiError) as caught:
                self.room.take(answers, prompts)
            assert caught.value.status == (400 if len(answers) > 8 or sum(lengths) > 100 else 503)
        else:
            self.inside.append((self.room.take(answers, prompts), answers, prompts))

    @rule(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        if self.inside:
            seats, waiting, _ = data.draw(st.sampled_from(self.inside))
            answer = data.draw(st.integers(0, 8))
            seats.leave(answer)
            waiting.pop(answer, None)

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        if self.inside:
            seats, _, _ = self.inside.pop(data.draw(st.integers(0, len(self.inside) - 1)))
            seats.__exit__(None, None, None)

    @invariant()
    def counts_who_waits(self) -> None:
        assert self.room.waiting == sum(len(waiting) for _, waiting, _ in self.inside)
        tokens = (prompts[p] for _, waiting, prompts in self.inside for p in set(waiting.values()))
        assert self.room.waiting_tokens == sum(tokens)


TestRoom = RoomMachine.TestCase
TestRoom.settings = settings(max_examples=50, deadline=None)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def refused_for(room: QueueLimit, answers: int, tokens: int) -> str:
    with pytest.raises(ApiError) as caught:
        room.check(answers, tokens)
    return caught.value.headers["Retry-After"]


def test_whoever_is_refused_hears_when_there_will_be_room() -> None:
    clock = Clock()
    room = QueueLimit(limit=10, token_limit=1000, clock=clock)
    seats = [room.take({n: n}, {n: 100}) for n in range(10)]
    assert refused_for(room, 4, 1) == "5", "nothing has left yet"
    for _ in range(50):  # two choices a second start, and two arrive
        clock.now += 0.5
        seats.pop(0).leave_all()
        seats.append(room.take({0: 0}, {0: 100}))
    assert refused_for(room, 4, 1) == "2"
    assert refused_for(room, 10, 1) == "5"
    clock.now += 1000
    assert refused_for(room, 10, 1) == "5", "nothing has left of late"


def test_whoever_asks_for_too_many_tokens_hears_it_too() -> None:
    clock = Clock()
    room = QueueLimit(limit=1000, token_limit=1000, clock=clock)
    seats = [room.take({n: n}, {n: 100}) for n in range(10)]
    for _ in range(50):
        clock.now += 0.5
        seats.pop(0).leave_all()
        seats.append(room.take({0: 0}, {0: 100}))
    assert refused_for(room, 1, 600) == "3"


@pytest.mark.parametrize(("rate", "count", "seconds"), [(1, 10, 10), (100, 50, 0.5), (0.5, 3, 6)])
def test_a_departure_rate(rate: float, count: int, seconds: float) -> None:
    clock = Clock()
    leaving = DepartureRate(clock)
    assert leaving.seconds(count) is None
    for _ in range(1000):
        clock.now += 1 / rate
        leaving.left(1)
    assert leaving.seconds(count) == pytest.approx(seconds, rel=0.15)
    clock.now += 1000
    assert leaving.seconds(count) is None
