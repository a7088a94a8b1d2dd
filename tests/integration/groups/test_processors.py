"""Members with different processors compute with the least instruction set of all, and with a better one when they can.

PLIMSOLL_CPU_ISA limits a member as another processor would.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from groups_support.answers import assert_same, completed
from groups_support.machines import Machine, two_machines
from groups_support.members import Group, layout, running
from groups_support.ranks import until
from server_support.process import serving
from structured_support.models import spelling_model

from plimsoll_kernels.cpu.library import VARIABLE, runnable

pytestmark = pytest.mark.skipif("avx512" not in runnable(), reason="this processor runs one instruction set only")

OPTIONS = ("--dtype", "float32", "--max-batch-tokens", "32")
RECOVERY = ("--recover-seconds", "120", "--step-timeout", "5", "--check-collectives")
PROMPTS: list[str | list[int]] = ["the answer is", [9, 2, 6] * 20, [7]]
LEAST = "the group computes with avx2, the least of its members: avx512 on member 0, avx2 on member 1"
BEST = "the group computes with avx512, the best instruction set of all its members"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return spelling_model(tmp_path_factory.mktemp("model"), num_attention_heads=6, num_key_value_heads=3, head_dim=16)


@pytest.fixture(scope="module")
def machines() -> Iterator[tuple[Machine, Machine]]:
    with two_machines() as found:
        yield found


def count(group: Group, index: int, words: str) -> int:
    return group.members[index].log.read_text().count(words)


def loads(group: Group) -> list[tuple[int, int]]:
    """Return how often the rank of each member has read weights for AVX2, and for AVX-512, and not woken from an
    image.
    """
    return [
        (count(group, index, "CPU kernels: avx2 on"), count(group, index, "CPU kernels: avx512 on")) for index in (0, 1)
    ]


def replace_member(group: Group) -> None:
    group.members[1].kill()
    until(lambda: group.members[0].status() == 503)
    group.start(1)
    group.until_ready()


@pytest.mark.parametrize("sizes", [(2, 1), pytest.param((1, 2), marks=pytest.mark.long)], ids=["tensor", "stages"])
def test_the_least_set_of_all_members(
    model: Path,
    machines: tuple[Machine, Machine],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sizes: tuple[int, int],
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    answers = {}
    for name in ("avx2", "avx512"):
        monkeypatch.setenv(VARIABLE, name)
        with serving(model, tmp_path / name, *OPTIONS) as alone:
            answers[name] = [completed(alone, prompt, temperature=0.0) for prompt in PROMPTS]
    monkeypatch.delenv(VARIABLE)

    def check(name: str, said: str, report: dict[str, str]) -> None:
        assert count(group, 0, said) == times[said]
        # The first statistics follow the end of the start.
        until(lambda: httpx.get(f"{group.members[0].url}/health", timeout=10).json() == report)
        for prompt, expected in zip(PROMPTS, answers[name], strict=True):
            assert_same(expected, completed(group.server, prompt, temperature=0.0))

    times = {LEAST: 1, BEST: 1}
    options = (*OPTIONS, *RECOVERY, *layout(*sizes))
    with running(model, machines, tmp_path, *options, variables={1: {VARIABLE: "avx2"}}) as group:
        check("avx2", LEAST, {"status": "ready", "instruction_set": LEAST})
        assert loads(group) == [(1, 0), (1, 0)]
        group.members[1].rank(sizes[0] * sizes[1] - 1).kill()
        until(lambda: group.members[0].status() == 503)
        group.until_ready()
        check("avx2", LEAST, {"status": "ready", "instruction_set": LEAST})
        assert loads(group) == [(1, 0), (1, 0)], "the ranks wake from their images"
        group.variables.clear()
        replace_member(group)
        check("avx512", BEST, {"status": "ready"})
        assert loads(group) == [(1, 1), (1, 1)], "the leader's image for AVX2 is discarded"
        group.variables[1] = {VARIABLE: "avx2"}
        replace_member(group)
        times[LEAST] = 2
        check("avx2", LEAST, {"status": "ready", "instruction_set": LEAST})
        assert loads(group) == [(2, 1), (2, 1)]
    assert "could not start" not in group.members[0].log.read_text()
