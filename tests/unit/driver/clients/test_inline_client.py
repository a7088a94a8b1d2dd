"""An engine in the event loop's process: final-only outputs, aborts, and errors for all requests when it dies."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import aclosing

import pytest

from plimsoll_runtime.driver.clients.inline_client import InlineEngine
from plimsoll_runtime.engine.core import EngineCore
from plimsoll_runtime.engine.protocol.messages import (
    AddRequest,
    EngineStats,
    RequestContext,
    RequestOutput,
    StepOutputs,
)
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.errors import EngineDeadError, UsageError


class Counting(EngineCore):
    """An engine core that returns the prompt's tokens, one in each step."""

    def __init__(self, *, fails_at: int | None = None) -> None:
        self.left: dict[str, list[int]] = {}
        self.aborted: list[str] = []
        self.final_only: set[str] = set()
        self.steps = 0
        self._fails_at = fails_at

    @property
    def has_work(self) -> bool:
        return bool(self.left)

    @property
    def stats(self) -> EngineStats:
        return EngineStats(steps=self.steps)

    def add(self, request: AddRequest) -> None:
        if not request.prompt_token_ids:
            raise UsageError("the prompt is empty")
        self.left[request.request_id] = list(request.prompt_token_ids)
        if request.context.final_only:
            self.final_only.add(request.request_id)

    def abort(self, request_ids: Iterable[str]) -> None:
        for name in request_ids:
            self.aborted.append(name)
            self.left.pop(name, None)

    def step(self) -> StepOutputs:
        if self.steps == self._fails_at:
            raise RuntimeError("no device")
        self.steps += 1
        outputs = []
        for name, tokens in list(self.left.items()):
            token = tokens.pop(0)
            outputs.append(RequestOutput(name, [token], finish_reason=None if tokens else "length"))
            if not tokens:
                del self.left[name]
        return StepOutputs(outputs, self.stats)


def request(name: str, tokens: int, *stop: str) -> AddRequest:
    return AddRequest(name, list(range(tokens)), RequestContext(SamplingParams(stop=stop), seed=0))


async def answers(engine: InlineEngine, asked: AddRequest) -> list[list[int]]:
    return [list(output.token_ids) async for output in engine.generate(asked)]


async def test_an_answer_comes_whole_unless_it_may_be_ended_early() -> None:
    core = Counting()
    engine = InlineEngine(core)
    whole, parts = await asyncio.gather(answers(engine, request("a", 5)), answers(engine, request("b", 5, "x")))
    assert whole == [[0, 1, 2, 3, 4]]
    assert [token for part in parts for token in part] == [0, 1, 2, 3, 4]
    assert len(parts) > 1
    assert engine.stats.steps == 5
    assert core.final_only == {"a"}
    await engine.stop()


async def test_whoever_leaves_early_is_aborted() -> None:
    core = Counting()
    engine = InlineEngine(core)
    async with aclosing(engine.generate(request("a", 100, "x"))) as outputs:
        async for _ in outputs:
            break
    assert core.aborted == ["a"]
    assert not core.has_work
    await engine.stop()


async def test_refusals_and_names_in_use() -> None:
    engine = InlineEngine(Counting())
    with pytest.raises(UsageError, match="empty"):
        await answers(engine, request("a", 0))
    first = asyncio.ensure_future(answers(engine, request("a", 50)))
    await asyncio.sleep(0)
    with pytest.raises(UsageError, match="in use"):
        await answers(engine, request("a", 1))
    assert len((await first)[0]) == 50
    await engine.stop()
    with pytest.raises(EngineDeadError):
        await answers(engine, request("b", 1))


async def test_everybody_hears_of_its_death() -> None:
    engine = InlineEngine(Counting(fails_at=3))
    asked = [answers(engine, request(name, 10)) for name in "abc"]
    results = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(result) for result in results] == [EngineDeadError] * 3
    await engine.wait_dead()
    assert "no device" in str(engine.failure)
    await engine.stop()
