"""A rank that is lost is replaced, and every request goes on with the same tokens."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from model_support.tiny import make_model, save_model
from server_support.process import Served, serving

OPTIONS = ("--dtype", "float32", "--tensor-parallel", "2", "--check-integrity-every", "1")
SECONDS = 60.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that the CPU kernels compute, so that its weights are in images."""
    folder = tmp_path_factory.mktemp("model")
    save_model(make_model("LlamaConfig", {"head_dim": 16, "hidden_size": 64}), folder)
    return folder


def children_of(server: Served) -> dict[str, psutil.Process]:
    """Return the ranks and the fork server, by name."""
    return {child.name(): child for child in server.engine().children()}


def ranks_of(server: Served) -> dict[str, psutil.Process]:
    return {name: child for name, child in children_of(server).items() if name.startswith("plimsoll-rank")}


def until(condition: Callable[[], bool], seconds: float = SECONDS) -> float:
    """Poll a condition; return the seconds until it was true."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + seconds
        time.sleep(0.01)
    return time.monotonic() - began


def health(server: Served) -> int:
    return httpx.get(f"{server.url}/health", timeout=10).status_code


def text(server: Served, prompt: list[int], tokens: int, seed: int) -> str:
    body: dict[str, Any] = {
        **{"model": "tiny", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "seed": seed, "stream": True},
        **{"temperature": 0.9},
    }
    pieces = []
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=120) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            if line.startswith("data: {"):
                pieces.append(httpx.Response(200, content=line.removeprefix("data: ")).json()["choices"][0]["text"])
    assert line == "data: [DONE]" or not line
    return "".join(pieces)


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


def steps_of(server: Served) -> float:
    found = [line for line in server.metrics() if line.startswith("plimsoll_engine_steps_total")]
    return float(found[0].rpartition(" ")[2]) if found else 0.0


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
