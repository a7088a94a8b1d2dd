"""A server whose ranks replay graphs, recorded on a CPU, answers as one with a single rank does."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from groups_support.answers import assert_same, completed
from groups_support.plants import planted
from groups_support.ranks import health, ranks_of, until
from model_support.tiny import make_model, save_model
from server_support.process import Served, serving

OPTIONS = ("--dtype", "float32", "--max-batch-tokens", "32", "--max-sequences", "4", "--attention-backend", "torch")
PROMPTS = [[9, 2, 6] * 20, [5, 3] * 7, [7]]


@pytest.fixture(scope="module", params=[60, 1100], ids=["vocabulary-of-rank-0", "divided-vocabulary"])
def vocab(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def model(vocab: int, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three key heads for two ranks."""
    folder = tmp_path_factory.mktemp("model")
    heads = {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 16, "vocab_size": vocab}
    save_model(make_model("LlamaConfig", heads), folder)
    return folder


@pytest.fixture(scope="module")
def alone(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(model, tmp_path_factory.mktemp("log") / "alone", *OPTIONS) as server:
        yield server


def test_answers_are_those_of_one_rank(
    vocab: int, model: Path, alone: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = planted(tmp_path, "plimsoll_runtime.driver.build.engine", "graphs_on_a_cpu")
    monkeypatch.setenv("PYTHONPATH", path)
    group = (*OPTIONS, "--tensor-parallel", "2", "--group-backend", "gloo", "--check-integrity-every", "1")
    with serving(model, tmp_path / "log", *group) as server:
        for prompt in PROMPTS:
            for options in ({"temperature": 0.0}, {"temperature": 0.8, "seed": 5, "n": 3}):
                assert_same(completed(alone, prompt, **options), completed(server, prompt, **options))
        ranks_of(server)["plimsoll-rank-1"].send_signal(signal.SIGKILL)
        until(lambda: health(server) == 503, 5.0)
        until(lambda: health(server) == 200)
        assert (
            completed(server, PROMPTS[0], temperature=0.0)[0][0] == completed(alone, PROMPTS[0], temperature=0.0)[0][0]
        )
        server.process.kill()
        server.end()
    # If rank 0 samples alone, it also has graphs of sampling.
    counts = re.findall(r"rank (\d): captured (\d+) of (\d+) graphs", "".join(server.lines))
    of_sampling = 2 if vocab < 1024 else 0
    assert sorted(counts) == [("0", "3", "3")] * (2 + of_sampling) + [("1", "3", "3")] * 2, "of two generations"
