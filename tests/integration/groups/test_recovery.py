"""A rank that is lost is replaced, and every request goes on with the same tokens."""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest
from groups_support.ranks import OPTIONS, SECONDS, children_of, health, ranks_of, steps_of, text, until
from model_support.tiny import make_model, save_model
from server_support.process import serving


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that the CPU kernels compute, so that its weights are in images."""
    folder = tmp_path_factory.mktemp("model")
    save_model(make_model("LlamaConfig", {"head_dim": 16, "hidden_size": 64}), folder)
    return folder


def test_streams_go_on_with_the_same_tokens(model: Path, tmp_path: Path) -> None:
    prompts = [[n + 1, 3, 5] * (n + 1) for n in range(8)]
    with serving(model, tmp_path / "log", *OPTIONS) as server, ThreadPoolExecutor(len(prompts)) as pool:
        expected = [text(server, prompt, 200, n) for n, prompt in enumerate(prompts)]
        killed = []
        for name in ("plimsoll-rank-1", "plimsoll-rank-0"):
            found = pool.map(text, [server] * 8, prompts, [200] * 8, range(8))
            steps = steps_of(server)
            until(lambda: steps_of(server) > steps + 20)  # noqa: B023 (called at once)
            victim = ranks_of(server)[name]
            victim.send_signal(signal.SIGKILL)
            killed.append(victim)
            until(lambda: health(server) == 503, 2.0)
            assert httpx.get(f"{server.url}/live").status_code == 200
            assert list(found) == expected
            assert health(server) == 200
        assert not any(process.is_running() for process in killed)
        assert len(ranks_of(server)) == 2


def test_a_hung_rank_is_named_and_replaced(model: Path, tmp_path: Path) -> None:
    with serving(model, tmp_path / "log", *OPTIONS, "--step-timeout", "1") as server:
        expected = text(server, [3, 1], 20, 0)
        ranks_of(server)["plimsoll-rank-1"].send_signal(signal.SIGSTOP)
        began = time.monotonic()
        assert text(server, [3, 1], 20, 0) == expected
        assert time.monotonic() - began < SECONDS
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
        body = {"model": "tiny", "prompt": [4, 2], "max_tokens": 4}
        refused = httpx.post(f"{server.url}/v1/completions", json=body, timeout=20)
        assert refused.status_code == 503
        assert "were not replaced" in refused.text
        forks.resume()
        until(lambda: health(server) == 200)
        assert text(server, [4, 2], 4, 0)


def test_nothing_is_left_behind(model: Path, tmp_path: Path) -> None:
    with serving(model, tmp_path / "log", *OPTIONS) as server:
        processes = [server.engine(), *children_of(server).values()]
        server.process.terminate()
        assert server.end() == 0
        _, alive = psutil.wait_procs(processes, SECONDS)
        assert not alive
