"""Ranks on GPUs answer as one GPU does, and are replaced if they are lost: `make check-gpu PART="group-1 group-n"`.

group-1: ranks that share one GPU, over gloo, and one rank over NCCL. group-n: ranks with a GPU each, over NCCL.
"""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random

import psutil
import pytest
import torch
from groups_support.answers import assert_same, completed
from groups_support.clients import Client
from groups_support.ranks import health, ranks_of, text, until
from model_support.tiny import make_model, save_model
from server_support.process import Served, serving

from plimsoll_runtime.driver.build.engine import build_engine
from plimsoll_runtime.driver.process.rank_group import RankGroup
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.core import EngineCore
from plimsoll_runtime.engine.protocol.messages import AddRequest, RequestContext
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.engine.step_timing import Timeline
from plimsoll_runtime.utils.progress import silent

OPTIONS = ("--device", "cuda", "--dtype", "float32", "--max-batch-tokens", "32", "--check-integrity-every", "1")
PROMPTS: list[str | list[int]] = ["the answer is", [9, 2, 6] * 20, [5, 3] * 40, [7]]
LOSSES = 8
TEXT_SECONDS = 120.0
"""Most seconds of a text during losses: each of them loads the model and captures graphs again."""


def gpus() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def skip_unless(needed: int) -> None:
    if gpus() < needed:
        pytest.skip(f"needs {needed} GPU{'s' if needed > 1 else ''}, and torch finds {gpus() or 'none'}")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_model(make_model("LlamaConfig", {"head_dim": 16, "hidden_size": 64}), folder)
    return folder


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((1, "gloo"), id="group-1"),
        pytest.param((2, "nccl"), id="group-n"),
    ],
)
def options(request: pytest.FixtureRequest) -> tuple[str, ...]:
    needed, backend = request.param
    skip_unless(needed)
    return (*OPTIONS, "--tensor-parallel", "2", "--group-backend", backend, "--step-timeout", "5")


@pytest.fixture(scope="module")
def group(options: tuple[str, ...], model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(model, tmp_path_factory.mktemp("log") / "group", *options) as server:
        yield server


@pytest.fixture(scope="module")
def alone(group: Served, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    assert group
    with serving(model, tmp_path_factory.mktemp("log") / "alone", *OPTIONS) as server:
        yield server


@pytest.mark.gpu
@pytest.mark.parametrize("prompt", PROMPTS, ids=range(len(PROMPTS)))
def test_answers_are_those_of_one_gpu(alone: Served, group: Served, prompt: str | list[int]) -> None:
    for options in ({"temperature": 0.0}, {"temperature": 0.8, "seed": 5, "n": 3}):
        assert_same(completed(alone, prompt, **options), completed(group, prompt, **options))


@pytest.mark.gpu
def test_ranks_have_the_same_graphs(group: Served, options: tuple[str, ...]) -> None:
    log = "".join(group.lines)
    found = {rank: re.findall(rf"rank {rank}: captured (\d+) of (\d+) graphs", log) for rank in (0, 1)}
    if "gloo" in options:
        assert found == {0: [], 1: []}, "gloo adds on the host"
        return
    # Rank 0 also has graphs of sampling, which come first.
    assert len(found[0]) == 2
    assert found[0][1:] == found[1]
    assert int(found[1][0][0]) > 0


@pytest.mark.gpu
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("loss", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_rank_is_replaced(group: Served, rank: int, loss: signal.Signals) -> None:
    expected = text(group, [3, 1], 40, 0)
    lost = ranks_of(group)[f"plimsoll-rank-{rank}"]
    lost.send_signal(loss)
    assert text(group, [3, 1], 40, 0) == expected
    until(lambda: not lost.is_running() or lost.status() == psutil.STATUS_ZOMBIE)
    until(lambda: health(group) == 200, TEXT_SECONDS)


@pytest.mark.gpu
def test_no_request_is_lost(group: Served) -> None:
    random, ended = Random(35), threading.Event()
    clients = [Client(group, number, 40, ended) for number in range(4)]
    for client in clients:
        client.start()
    for _ in range(LOSSES):
        ended.wait(random.uniform(0.0, 3.0))
        until(lambda: health(group) == 200, TEXT_SECONDS)
        lost = random.choice(list(ranks_of(group).values()))
        lost.send_signal(random.choice([signal.SIGKILL, signal.SIGSTOP]))
    until(lambda: health(group) == 200, TEXT_SECONDS)
    ended.set()
    for client in clients:
        client.finish()


def generated(engine: EngineCore, numbers: Iterator[int], tokens: int = 20) -> list[int]:
    """Return the greedy tokens of one request."""
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    engine.add(AddRequest(str(next(numbers)), [5, 3, 9], RequestContext(params, seed=0)))
    found: list[int] = []
    while len(found) < tokens:
        for output in engine.step().outputs:
            found += output.token_ids
            assert output.error is None
    return found


@pytest.mark.parametrize(
    ("backend", "device"),
    [pytest.param("gloo", "cpu"), pytest.param("nccl", "cuda", marks=pytest.mark.gpu, id="group-1-nccl")],
)
def test_one_rank_starts_computes_and_is_replaced(backend: str, device: str, model: Path) -> None:
    """With NCCL its sums are captured in graphs."""
    if device == "cuda":
        skip_unless(1)
    options = {"model": str(model), "dtype": "float32", "device": device, "kv_memory": "8MiB", "threads": 1}
    config, numbers = EngineConfig(**options, group_backend=backend), count()  # type: ignore[arg-type]
    expected = generated(build_engine(config, silent), numbers)
    group = RankGroup(config, silent)
    try:
        engine = EngineCore(
            config, group.info, group, Timeline(), group.timeline, compiler=group.grammars, recovery=group
        )
        assert generated(engine, numbers) == expected
        children = psutil.Process().children(recursive=True)
        [rank] = [each for each in children if each.name() == "plimsoll-rank-0"]
        rank.kill()
        assert generated(engine, numbers) == expected
        assert not rank.is_running() or rank.status() == psutil.STATUS_ZOMBIE
    finally:
        group.end()
