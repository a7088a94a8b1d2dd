"""Stages of several ranks on two machines: answers are those of one rank, and each rank is replaced after a loss."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from groups_support.answers import completed
from groups_support.machines import Machine, two_machines
from groups_support.members import layout, running
from groups_support.ranks import steps_of, text, until
from server_support.process import Served, serving
from structured_support.models import spelling_model

OPTIONS = ("--dtype", "float32", "--max-batch-tokens", "32", "--check-integrity-every", "1", "--check-collectives")
RECOVERY = ("--recover-seconds", "120", "--step-timeout", "5")
PROMPTS: list[str | list[int]] = ["the answer is", [9, 2, 6] * 20, [5, 3] * 40, [7]]
STREAMS = [[n + 1, 3, 5] * (n + 1) for n in range(4)]
TOKENS = 300


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return spelling_model(tmp_path_factory.mktemp("model"), num_attention_heads=6, num_key_value_heads=3, head_dim=16)


@pytest.fixture(scope="module")
def machines() -> Iterator[tuple[Machine, Machine]]:
    with two_machines() as found:
        yield found


@pytest.fixture(scope="module")
def alone(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(model, tmp_path_factory.mktemp("log") / "alone", *OPTIONS) as server:
        yield server


@pytest.mark.long
@pytest.mark.parametrize("sizes", [(2, 2), (2, 3)], ids=["a-stage-on-each", "a-stage-on-both"])
def test_stages_of_two_ranks(
    alone: Served, model: Path, machines: tuple[Machine, Machine], tmp_path: Path, sizes: tuple[int, int]
) -> None:
    """With three stages of two ranks, the middle stage has a rank on each machine. Any rank is lost, and replaced."""
    tensor, stages = sizes
    with (
        running(model, machines, tmp_path, *OPTIONS, *RECOVERY, *layout(tensor, stages)) as group,
        ThreadPoolExecutor(4) as pool,
    ):
        server = group.server
        for prompt in PROMPTS:
            for options in ({"temperature": 0.0}, {"temperature": 0.8, "seed": 5, "n": 3}):
                ours, theirs = completed(alone, prompt, **options), completed(server, prompt, **options)
                assert [each for each, _, _ in ours] == [each for each, _, _ in theirs]
        expected = [text(server, prompt, TOKENS, n) for n, prompt in enumerate(STREAMS)]
        of_member = tensor * stages // 2
        for rank in (0, of_member - 1, of_member, 2 * of_member - 1):
            found = pool.map(text, [server] * 4, STREAMS, [TOKENS] * 4, range(4))
            steps = steps_of(server)
            until(lambda: steps_of(server) > steps + 20)  # noqa: B023 (called at once)
            group.members[rank // of_member].rank(rank).send_signal(signal.SIGKILL)
            assert list(found) == expected
            group.until_ready()
