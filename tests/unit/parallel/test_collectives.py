"""Collectives over torch's process groups, and over our exchange."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from model_support.forward import hidden_states
from model_support.random_weights import RandomWeights, reading
from model_support.tiny import COMMON, prompts
from torch.testing._internal.distributed import fake_pg  # registers the backend

from plimsoll_runtime.execution.attention.backends.reference import ReferenceBackend
from plimsoll_runtime.models.compose.decoder import program_of
from plimsoll_runtime.models.decoder import TorchDecoder
from plimsoll_runtime.models.registry.registry import describe
from plimsoll_runtime.parallel.collectives import CollectivesDifferError, TorchCollectives
from plimsoll_runtime.parallel.member import CountedCollectives
from plimsoll_runtime.parallel.shard import shard

RANKS = 64


@pytest.fixture
def ended() -> Iterator[None]:
    assert fake_pg
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("ended")
@pytest.mark.parametrize("rank", [0, 1, 40, RANKS - 1])
def test_each_of_64_ranks_runs_its_part(tmp_path: Path, rank: int) -> None:
    """The fake backend exchanges nothing, so only shapes are compared; it is one process of a group of 64."""
    config = {**COMMON, "architectures": ["LlamaForCausalLM"], "num_attention_heads": 96, "num_key_value_heads": 48}
    whole = program_of(describe({**config, "head_dim": 8, "intermediate_size": 100}))
    collectives = CountedCollectives(TorchCollectives("fake", f"file://{tmp_path}/meeting", rank, RANKS))
    part = shard(whole, RANKS, rank)
    decoder = TorchDecoder(part, reading(part, RandomWeights(whole), torch.float32), collectives)
    hidden = hidden_states(decoder, ReferenceBackend, prompts((20,))[0], 7)
    assert hidden.shape == (20, COMMON["hidden_size"])
    assert hidden.isfinite().all()


@pytest.mark.usefixtures("ended")
def test_a_group_of_one_over_gloo(tmp_path: Path) -> None:
    collectives = TorchCollectives("gloo", f"file://{tmp_path}/meeting", 0, 1)
    assert collectives.exchange is None
    partial = torch.randn(3, 5).to(torch.bfloat16)
    assert torch.equal(CountedCollectives(collectives).sum(partial), partial)
    for data in (b"", b"abc", bytes(range(256))):
        assert collectives.gathered(data) == [data]


def _sums(rank: int, meeting: str, sizes: tuple[int, int], results: Queue[list[float] | str], done: Event) -> None:
    """Run one of two ranks: three sums of the size of the rank. It leaves the group when `done` is set.

    A rank that leaves earlier closes its connections, and the other may lose what it has not read yet.
    """
    collectives = CountedCollectives(TorchCollectives("gloo", meeting, rank, 2, check=True))
    total = torch.zeros(0)
    try:
        for number in range(3):
            total = collectives.sum(torch.full((sizes[rank],), rank + 0.5 + number))
    except (CollectivesDifferError, RuntimeError) as error:
        results.put(str(error))
    else:
        results.put(total.tolist())
    done.wait(120)
    dist.destroy_process_group()


@pytest.mark.long
def test_different_sums_are_named(tmp_path: Path) -> None:
    spawned = get_context("spawn")
    expected: list[tuple[tuple[int, int], list[float] | str]] = [
        ((3, 3), [6.0] * 3),
        (
            (3, 4),
            "the ranks' calls differ: rank 0 called sum with 12 bytes, rank 1 called sum with 16 bytes",
        ),
    ]
    for number, (sizes, result) in enumerate(expected):
        results: Queue[list[float] | str] = spawned.Queue()
        done = spawned.Event()
        meeting = f"file://{tmp_path}/meeting{number}"
        ranks = [spawned.Process(target=_sums, args=(rank, meeting, sizes, results, done)) for rank in range(2)]
        for process in ranks:
            process.start()
        assert [results.get(timeout=120) for _ in ranks] == [result] * 2
        done.set()
        for process in ranks:
            process.join(60)
            assert process.exitcode == 0
