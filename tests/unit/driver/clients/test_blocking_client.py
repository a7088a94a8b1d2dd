"""The blocking client has the methods of an engine core."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest
from builders import request, tokens_of
from fake_engine import FACTORY, POISON_PROMPT
from simulated import oracle

from plimsoll_runtime.driver.clients.blocking_client import BlockingEngine
from plimsoll_runtime.engine.config import STEP_SECONDS, EngineConfig
from plimsoll_runtime.engine.protocol.messages import RequestOutput
from plimsoll_runtime.errors import EngineDeadError, SourceError, UsageError


@contextmanager
def running(model: str = "fine", step_timeout: float = STEP_SECONDS) -> Iterator[BlockingEngine]:
    config = EngineConfig(model=model, max_batch_tokens=64, max_sequences=8, step_timeout=step_timeout)
    engine = BlockingEngine(config, factory=FACTORY)
    try:
        yield engine
    finally:
        engine.stop()


def drain(engine: BlockingEngine) -> dict[str, list[RequestOutput]]:
    outputs: dict[str, list[RequestOutput]] = {}
    while engine.has_work:
        for output in engine.step().outputs:
            outputs.setdefault(output.request_id, []).append(output)
    return outputs


def test_answers_come_and_what_is_aborted_does_not() -> None:
    with running() as engine:
        wanted = [request(f"r{i}", [i], max_tokens=10) for i in range(20)]
        for add in wanted:
            engine.add(add)
        engine.add(request("gone", [1], max_tokens=None))
        engine.step()
        engine.abort(["gone", "unknown"])
        outputs = drain(engine)
        for add in wanted:
            assert tokens_of(outputs[add.request_id])[-5:] == oracle(add, 8000).token_ids[-5:]
        assert engine.step().outputs == []
        assert engine.stats.generated_tokens >= 200


def test_prefixes_are_forgotten() -> None:
    with running() as engine:
        cached = []
        for name in ("a", "b", "c"):
            engine.add(request(name, list(range(20))))
            cached.append(drain(engine)[name][0].cached_tokens)
            if name == "b":
                engine.reset_prefix_cache()
        assert cached == [0, 19, 0]


def test_refusals_come_at_once() -> None:
    with running() as engine:
        with pytest.raises(UsageError, match="empty"):
            engine.add(request("r", []))
        engine.add(request("r", [1]))
        with pytest.raises(UsageError, match="in use"):
            engine.add(request("r", [1]))


def test_load_errors_keep_their_kind() -> None:
    with pytest.raises(SourceError, match="no such model"):
        BlockingEngine(EngineConfig(model="source"), factory=FACTORY)


def test_an_engine_that_fails_says_why() -> None:
    with running("raises") as engine:
        engine.add(request("r", [POISON_PROMPT]))
        with pytest.raises(EngineDeadError, match="the device is gone"):
            engine.step()
        engine.abort(["r"])


def test_a_killed_engine_ends_the_wait() -> None:
    with running("hangs") as engine:
        engine.add(request("r", [POISON_PROMPT]))
        os.kill(engine.pid, signal.SIGKILL)
        with pytest.raises(EngineDeadError, match="killed by signal 9"):
            engine.step()


@pytest.mark.long
def test_an_engine_that_hangs_ends_the_wait() -> None:
    with running(step_timeout=3) as engine:
        engine.add(request("r", [1], max_tokens=None))
        engine.step()
        os.kill(engine.pid, signal.SIGSTOP)
        with pytest.raises(EngineDeadError, match="hung and was killed"):
            drain(engine)


def test_stop_ends_the_process_and_may_be_called_again() -> None:
    with running() as engine:
        engine.stop()
        assert not psutil.pid_exists(engine.pid)
