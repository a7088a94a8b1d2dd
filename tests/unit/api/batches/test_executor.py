"""Failures that are not a row's fault: a full server is asked again, a dead engine ends the run."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from batch_support.mirror import Loader, Mirror

from plimsoll_runtime.api.batches.executor import LineExecutor
from plimsoll_runtime.api.batches.lines import Terms
from plimsoll_runtime.api.batches.offline import BatchConfig
from plimsoll_runtime.api.http.errors import ApiError, unavailable
from plimsoll_runtime.api.model_directory import OneModel
from plimsoll_runtime.api.served_model import ServedModel
from plimsoll_runtime.batch.job import Row
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.errors import EngineDeadError
from plimsoll_runtime.utils.progress import silent

CONFIG = BatchConfig(EngineConfig(model="m"), ("m",), "in.jsonl", Path("out.jsonl"))
TERMS = Terms("job", 1000, defaults={"model": msgspec.Raw(b'"m"')})
ROW = Row(0, 0, "in.jsonl", 1, 17, b'{"prompt": "ab"}')


class Crowded(OneModel):
    """A server that is full for a number of requests."""

    def __init__(self, model: ServedModel, times: int) -> None:
        super().__init__(model)
        self.times = times

    @asynccontextmanager
    async def lease(self, name: str | None, size: int) -> AsyncIterator[ServedModel]:
        if self.times:
            self.times -= 1
            raise unavailable("it is full")
        async with super().lease(name, size) as model:
            yield model


@pytest.fixture
async def model(tokenizer_folder: Path) -> AsyncIterator[ServedModel]:
    async with Loader(tokenizer_folder)(CONFIG, silent) as made:
        yield made


async def test_a_server_that_is_full_is_asked_again(model: ServedModel) -> None:
    paused: list[float] = []

    async def pause(seconds: float) -> None:
        paused.append(seconds)

    answered = await LineExecutor(Crowded(model, 3), TERMS, alone=False, pause=pause)(ROW)
    assert not answered.failed
    assert json.loads(answered.line)["response"]["body"]["choices"][0]["text"].startswith("ba")
    assert len(paused) == 3


async def test_a_dead_engine_is_no_answer(model: ServedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def dead(self: Mirror, request: object) -> object:
        raise EngineDeadError("it was killed")

    monkeypatch.setattr(Mirror, "generate", dead)
    with pytest.raises(EngineDeadError, match="it was killed"):
        await LineExecutor(OneModel(model), TERMS, alone=True)(ROW)


async def test_whatever_else_is_refused_is_the_rows(model: ServedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(self: Mirror, request: object) -> object:
        raise ApiError("too late", status=504, code="deadline_exceeded")

    monkeypatch.setattr(Mirror, "generate", refuses)
    answered = await LineExecutor(OneModel(model), TERMS, alone=True)(ROW)
    assert answered.failed
    told = json.loads(answered.line)
    assert told["custom_id"] == "row-0"
    assert told["response"]["status_code"] == 504
    assert told["response"]["body"]["error"]["code"] == "deadline_exceeded"
