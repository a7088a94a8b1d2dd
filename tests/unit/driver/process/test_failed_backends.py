"""Attention backends that failed on a rank are not used again, if there are others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from model_support.tiny import make_model, save_model
from parallel_support.ranks import ThreadCollectives, on_ranks

from plimsoll_runtime.driver.build.model_facts import of_rank
from plimsoll_runtime.driver.process.failed_backends import BackendLostError, FailedBackends
from plimsoll_runtime.driver.process.rank_child import failure_of
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.errors import EngineDeadError
from plimsoll_runtime.execution.attention import selection
from plimsoll_runtime.execution.attention.backends.gather.backend import GatheredBackend
from plimsoll_runtime.execution.attention.backends.reference import ReferenceBackend
from plimsoll_runtime.parallel.channel import BackendFailed
from plimsoll_runtime.parallel.layout import Layout
from plimsoll_runtime.parallel.losses import RankLostError
from plimsoll_runtime.parallel.member import CountedCollectives
from plimsoll_runtime.parallel.rank import Rank
from plimsoll_runtime.weights.sources.resolve import resolve


def lost(name: str) -> RankLostError:
    """Return the error of a generation in which a backend failed."""
    error = RankLostError("rank 1: it failed")
    error.__cause__ = failure_of("1", BackendFailed(name, "it failed"))
    return error


def test_each_is_added_once() -> None:
    failed = FailedBackends(EngineConfig(model="m"))
    assert not failed.take_new()
    assert failed.add(lost("triton"))
    assert failed.take_new()
    assert not failed.take_new()
    assert not failed.add(lost("triton"))
    assert failed.add(BackendLostError("it failed", "sdpa"))
    assert failed.names == ("triton", "sdpa")


def test_other_errors_name_none() -> None:
    failed = FailedBackends(EngineConfig(model="m"))
    other = RankLostError("rank 1 has ended")
    other.__cause__ = EngineDeadError("rank 1 has ended")
    for error in (other, RankLostError("rank 0 hangs"), EngineDeadError("no")):
        assert not failed.add(error)
    assert failed.names == ()


def test_a_backend_that_was_asked_for_is_kept() -> None:
    failed = FailedBackends(EngineConfig(model="m", attention_backend="triton"))
    assert not failed.add(lost("triton"))
    assert failed.names == ()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_model(make_model("LlamaConfig", {"head_dim": 16}), folder)
    return folder


@pytest.mark.parametrize(
    ("known", "expected"),
    [((), "torch"), (("torch",), "reference"), (("reference",), "torch"), (("torch", "reference"), "torch")],
)
def test_all_ranks_follow_rank_0(
    model: Path, known: tuple[str, ...], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only rank 0 knows which have failed. If none is left, it keeps the first."""
    monkeypatch.setattr(selection, "fastest_first", lambda target: [GatheredBackend, ReferenceBackend])
    config, files = EngineConfig(model=str(model), dtype="float32"), resolve(str(model))

    def of(group: ThreadCollectives, number: int) -> list[str]:
        failed = known if number == 0 else ()
        rank = Rank(number, Layout(2), 2, group, CountedCollectives(group), failed_backends=failed)
        return [backend.name for backend in of_rank(config, files, torch.device("cpu"), rank).backends]

    assert on_ranks(2, of) == [[expected]] * 2
