"""A rank that is lost is replaced, and every request goes on with the same tokens."""

from __future__ import annotations

import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest
from groups_support.ranks import (
    BOTH,
    CHECKED,
    OPTIONS,
    SECONDS,
    STAGED,
    children_of,
    health,
    metrics_of,
    ranks_of,
    steps_of,
    text,
    until,
)
from model_support.tiny import make_model, save_model
from server_support.process import serving


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that the CPU kernels compute, so that its weights are in images."""
    folder = tmp_path_factory.mktemp("model")
    save_model(make_model("LlamaConfig", {"head_dim": 16, "hidden_size": 64}), folder)
    return folder


@pytest.mark.parametrize(
    ("options", "ranks"),
    [
        (OPTIONS, (1, 0)),
        (STAGED, (1, 0)),
        pytest.param(BOTH, (3, 2, 1, 0), marks=pytest.mark.long),
        pytest.param((*STAGED, "--group-backend", "gloo"), (1, 0), marks=pytest.mark.long),
    ],
    ids=["tensor", "stages", "both", "stages-gloo"],
)
def test_streams_go_on_with_the_same_tokens(
    model: Path, tmp_path: Path, options: tuple[str, ...], ranks: tuple[int, ...]
) -> None:
    prompts = [[n + 1, 3, 5] * (n + 1) for n in range(8)]
    with serving(model, tmp_path / "log", *options) as server, ThreadPoolExecutor(len(prompts)) as pool:
        expected = [text(server, prompt, 300, n) for n, prompt in enumerate(prompts)]
        killed = []
        for name in [f"plimsoll-rank-{rank}" for rank in ranks]:
            found = pool.map(text, [server] * 8, prompts, [300] * 8, range(8))
            steps = steps_of(server)
            until(lambda: steps_of(server) > steps + 20)  # noqa: B023 (called at once)
            victim = ranks_of(server)[name]
            victim.send_signal(signal.SIGKILL)
            killed.append(victim)
            until(lambda: health(server) == 503, 2.0)
            assert httpx.get(f"{server.url}/live").status_code == 200
            assert list(found) == expected
            until(lambda: health(server) == 200)
        assert not any(process.is_running() for process in killed)
        assert len(ranks_of(server)) == len(ranks)


HUNG = [(STAGED, 0), (STAGED, 1), *[(BOTH, rank) for rank in range(4)], ((*CHECKED, "--pipeline-parallel", "3"), 1)]


@pytest.mark.long
@pytest.mark.parametrize(("options", "hung"), HUNG, ids=range(len(HUNG)))
def test_the_hung_rank_of_any_stage_is_named(model: Path, tmp_path: Path, options: tuple[str, ...], hung: int) -> None:
    """Under load: several steps are under way, and other ranks wait for the hung one."""
    prompts = [[n + 1, 3, 5] * (n + 1) for n in range(6)]
    with (
        serving(model, tmp_path / "log", *options, "--step-timeout", "1") as server,
        ThreadPoolExecutor(len(prompts)) as pool,
    ):
        expected = [text(server, prompt, 200, n) for n, prompt in enumerate(prompts)]
        found = pool.map(text, [server] * 6, prompts, [200] * 6, range(6))
        steps = steps_of(server)
        until(lambda: steps_of(server) > steps + 20)
        ranks_of(server)[f"plimsoll-rank-{hung}"].send_signal(signal.SIGSTOP)
        assert list(found) == expected
        server.process.kill()
        server.end()
        [named] = [line for line in server.lines if "hangs: a step took more than" in line]
        assert f"rank {hung} hangs" in named


def test_a_hung_rank_is_named_and_replaced(model: Path, tmp_path: Path) -> None:
    with serving(model, tmp_path / "log", *OPTIONS, "--step-timeout", "1") as server:
        expected = text(server, [3, 1], 20, 0)
        ranks_of(server)["plimsoll-rank-1"].send_signal(signal.SIGSTOP)
        began = time.monotonic()
        assert text(server, [3, 1], 20, 0) == expected
        assert time.monotonic() - began < SECONDS
        found = metrics_of(server)
        assert found['plimsoll_group_generation{model="tiny",namespace=""}'] == 2
        assert found['plimsoll_group_generations_lost_total{cause="rank_hung",model="tiny",namespace=""}'] == 1
        assert all(
            found[f'plimsoll_rank_wait_seconds_total{{model="tiny",namespace="",rank="{rank}"}}'] > 0
            for rank in range(2)
        )
        server.process.kill()
        server.end()
        assert "rank 1 hangs: a step took more than" in "".join(server.lines)


def test_requests_are_refused_if_nothing_replaces_the_ranks(model: Path, tmp_path: Path) -> None:
    with serving(model, tmp_path / "log", *OPTIONS, "--recover-seconds", "1") as server:
        forks = children_of(server)["plimsoll-forks"]
        forks.suspend()
        for process in ranks_of(server).values():
            process.send_signal(signal.SIGKILL)
        until(lambda: health(server) == 503, 2.0)
        report = httpx.get(f"{server.url}/health", timeout=10).json()
        assert report["status"] == "recovering"
        assert re.fullmatch(r"rank [01] was killed by signal 9.*", report["reason"])
        body = {"model": "tiny", "prompt": [4, 2], "max_tokens": 4}
        refused = httpx.post(f"{server.url}/v1/completions", json=body, timeout=20)
        assert refused.status_code == 503
        assert "were not replaced" in refused.text
        forks.resume()
        until(lambda: health(server) == 200)
        assert text(server, [4, 2], 4, 0)
        assert (
            metrics_of(server)['plimsoll_group_generations_lost_total{cause="rank_ended",model="tiny",namespace=""}']
            >= 1
        )


def test_nothing_is_left_behind(model: Path, tmp_path: Path) -> None:
    with serving(model, tmp_path / "log", *OPTIONS) as server:
        processes = [server.engine(), *children_of(server).values()]
        server.process.terminate()
        assert server.end() == 0
        _, alive = psutil.wait_procs(processes, SECONDS)
        assert not alive
