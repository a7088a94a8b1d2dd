"""Collectives over torch's process groups, and over our exchange."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from model_support.forward import hidden_states
from model_support.random_weights import RandomWeights, reading
from model_support.tiny import COMMON, prompts
from parallel_support.graphs import SLOTS, GraphRank
from torch.testing._internal.distributed import fake_pg  # registers the backend

from plimsoll_runtime.execution.attention.backends.reference import ReferenceBackend
from plimsoll_runtime.execution.graphs.capture import CaptureBounds, batch_buckets
from plimsoll_runtime.models.compose.decoder import program_of
from plimsoll_runtime.models.decoder import TorchDecoder
from plimsoll_runtime.models.ops.reduce import Reduce
from plimsoll_runtime.models.program import Program
from plimsoll_runtime.models.registry.registry import describe
from plimsoll_runtime.parallel.collectives import CollectivesDifferError, TorchCollectives
from plimsoll_runtime.parallel.member import CountedCollectives
from plimsoll_runtime.parallel.shard import shard

RANKS = 64
Exchanged = tuple[int, list[bytes], list[list[float]], int]
"""A rank, the messages and sums that it got, and its number of sums."""


@pytest.fixture
def ended() -> Iterator[None]:
    assert fake_pg
    yield
    dist.destroy_process_group()


def of_96_heads() -> Program:
    config = {**COMMON, "architectures": ["LlamaForCausalLM"], "num_attention_heads": 96, "num_key_value_heads": 48}
    return program_of(describe({**config, "head_dim": 8, "intermediate_size": 100}))


LAYOUTS = [(2, 1), (3, 2), (7, 6), (48, 47), *((RANKS, rank) for rank in (0, 1, 40, RANKS - 1))]
"""Numbers of ranks, and one of them."""


@pytest.mark.usefixtures("ended")
@pytest.mark.parametrize(("ranks", "rank"), LAYOUTS)
def test_each_rank_of_a_layout_runs_its_part(tmp_path: Path, ranks: int, rank: int) -> None:
    """The fake backend exchanges nothing, so only shapes are compared; it is one process of the group."""
    whole = of_96_heads()
    collectives = CountedCollectives(TorchCollectives("fake", f"file://{tmp_path}/meeting", rank, ranks))
    part = shard(whole, ranks, rank)
    decoder = TorchDecoder(part, reading(part, RandomWeights(whole), torch.float32), collectives)
    hidden = hidden_states(decoder, ReferenceBackend, prompts((20,))[0], 7)
    assert hidden.shape == (20, COMMON["hidden_size"])
    assert hidden.isfinite().all()


@pytest.mark.usefixtures("ended")
@pytest.mark.parametrize(("ranks", "rank"), LAYOUTS)
def test_each_rank_of_a_layout_captures_its_graphs(tmp_path: Path, ranks: int, rank: int) -> None:
    """The fake backend returns a rank's own messages as those of all ranks: they always agree."""
    group = TorchCollectives("fake", f"file://{tmp_path}/meeting", rank, ranks, check=False)
    assert group.gathered(b"own") == [b"own"] * ranks
    made = GraphRank(group, rank, ranks, of_96_heads())
    with torch.inference_mode():
        made.forward_pass.capture_graphs(made.capture, CaptureBounds(600.0, 2**40))
    graphs: Any = made.decodes._graphs
    assert {key[0] for key in graphs} == set(batch_buckets(SLOTS))
    widths = [op.width for op in made.part.ops if isinstance(op, Reduce)]
    assert [graph for graph in made.recorder.graphs if len(graph) == len(widths)] == [widths] * len(graphs)


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


GATHERED = [b"", b"one", bytes(range(256)) * 300]
"""The message of each rank."""


def _exchanged(rank: int, meeting: str, results: Queue[Exchanged], done: Event) -> None:
    """Run one of three ranks, as with nccl: messages of different lengths, and sums of each dtype."""
    group = TorchCollectives("gloo", meeting, rank, len(GATHERED), check=True)
    collectives, messages = CountedCollectives(group), group.gathered(GATHERED[rank])
    sums = []
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        part = torch.randn(7, 33, generator=torch.Generator().manual_seed(rank)).to(dtype)
        total = collectives.sum(part)
        assert total.dtype == dtype
        sums.append(total.float().flatten().tolist())
    with collectives.muted():
        collectives.sum(torch.zeros(rank + 1))
    results.put((rank, messages, sums, collectives.sums))
    done.wait(120)
    dist.destroy_process_group()


def test_ranks_over_gloo_exchange_messages_and_sums(tmp_path: Path) -> None:
    """Sums have the same bits on all ranks. A muted one, of which the sizes differ, joins no exchange."""
    spawned, ranks = get_context("spawn"), len(GATHERED)
    results: Queue[Exchanged] = spawned.Queue()
    done = spawned.Event()
    meeting = f"file://{tmp_path}/meeting"
    started = [spawned.Process(target=_exchanged, args=(rank, meeting, results, done)) for rank in range(ranks)]
    for process in started:
        process.start()
    found = sorted(results.get(timeout=120) for _ in started)
    done.set()
    for process in started:
        process.join(60)
        assert process.exitcode == 0
    assert [(rank, messages, sums) for rank, messages, _, sums in found] == [(n, GATHERED, 3) for n in range(ranks)]
    assert found[0][2] == found[1][2] == found[2][2]
    parts = [torch.randn(7, 33, generator=torch.Generator().manual_seed(rank)) for rank in range(ranks)]
    for dtype, total in zip((torch.float32, torch.bfloat16, torch.float16), found[0][2], strict=True):
        expected = sum(part.to(dtype).float() for part in parts).to(dtype).float()  # type: ignore[union-attr]
        torch.testing.assert_close(torch.tensor(total).view(7, 33), expected)


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
