"""An attention backend that fails on one rank is replaced on all, in the next generation of ranks."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from groups_support.plants import TORCH_BACKEND, planted
from groups_support.ranks import OPTIONS, health, ranks_of, text, until
from model_support.tiny import make_model, save_model
from server_support.process import Served, serving

OVER_GLOO = (*OPTIONS, "--group-backend", "gloo")
"""So that torch computes, with a choice of attention backends."""
PROMPTS = [[n + 1, 3, 5] * (n + 1) for n in range(4)]
TOKENS = 30


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_model(make_model("LlamaConfig", {"head_dim": 16, "hidden_size": 64}), folder)
    return folder


def texts(server: Served) -> list[str]:
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        return list(pool.map(text, [server] * len(PROMPTS), PROMPTS, [TOKENS] * len(PROMPTS), range(len(PROMPTS))))


@pytest.fixture(scope="module")
def expected(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    with serving(model, tmp_path_factory.mktemp("log") / "log", "--dtype", "float32") as server:
        return texts(server)


@pytest.mark.parametrize("plant", ["fail_on_rank_1", "fail_on_rank_1_at_once"])
def test_all_ranks_use_the_next_backend(
    model: Path, expected: list[str], tmp_path: Path, plant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", planted(tmp_path, TORCH_BACKEND, plant))
    with serving(model, tmp_path / "log", *OVER_GLOO) as server:
        assert texts(server) == expected
        assert 'plimsoll_attention_fallbacks_total{model="tiny",namespace=""} 1.0' in server.metrics()
        # The backend would fail again by now if rank 1 still used it.
        assert texts(server) == expected
        # A later generation wakes from the images of the second one.
        ranks_of(server)["plimsoll-rank-0"].send_signal(signal.SIGKILL)
        until(lambda: health(server) == 503, 5.0)
        until(lambda: health(server) == 200)
        assert texts(server) == expected
        assert 'plimsoll_attention_fallbacks_total{model="tiny",namespace=""} 1.0' in server.metrics()
        server.process.kill()
        server.end()
    log = "".join(server.lines)
    assert "rank 1: the attention backend torch failed with RuntimeError: no kernel image is available" in log
    assert log.count("the attention backend torch is not used again") == 1
    assert log.count(" is ready after ") == (2 if plant == "fail_on_rank_1" else 1)
