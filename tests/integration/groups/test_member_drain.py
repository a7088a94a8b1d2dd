"""Members of a group that get SIGTERM: a leader that drains keeps them, and otherwise a replacement continues."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from groups_support.machines import Machine, two_machines
from groups_support.members import Group, MemberProcess, layout, member, running
from groups_support.ranks import metrics_of, steps_of, text, until
from structured_support.models import spelling_model

OPTIONS = ("--dtype", "float32", "--max-batch-tokens", "32", "--recover-seconds", "120", "--step-timeout", "5")
PROMPT, TOKENS = [3, 1, 5], 4000
DRAIN_SECONDS = 60.0
SECONDS = 120.0
APART_SECONDS = 1.0
"""Time between the signals of two pods that are deleted together, at most 2 s."""
RELEASE_SECONDS = 30.0
"""The leader's 2 s, and time to end processes on a busy machine; less than the drain time."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    sizes = {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 16}
    return spelling_model(folder, **sizes, max_position_embeddings=4096)


@pytest.fixture(scope="module")
def machines() -> Iterator[tuple[Machine, Machine]]:
    with two_machines() as found:
        yield found


@pytest.fixture(scope="module")
def group(model: Path, machines: tuple[Machine, Machine], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    options = (*OPTIONS, *layout(2, 1), "--drain-seconds", f"{DRAIN_SECONDS:g}")
    with running(model, machines, tmp_path_factory.mktemp("logs"), *options) as found:
        yield found


@pytest.fixture(scope="module")
def expected(group: Group) -> str:
    return text(group.server, PROMPT, TOKENS, 0)


def start_stream(pool: ThreadPoolExecutor, group: Group) -> Future[str]:
    """Start a stream, and return when it runs."""
    server = group.server
    steps = steps_of(server)
    found = pool.submit(text, server, PROMPT, TOKENS, 0)
    until(lambda: steps_of(server) > steps + 20)
    return found


def terminate(processes: Sequence[MemberProcess], apart: float = 0.0) -> None:
    for number, each in enumerate(processes):
        threading.Event().wait(apart if number else 0.0)
        each.process.send_signal(signal.SIGTERM)


@pytest.mark.parametrize(
    ("order", "apart"),
    [
        ((1, 0), 0.0),
        pytest.param((1, 0), APART_SECONDS, marks=pytest.mark.long),
        pytest.param((0, 1), 0.0, marks=pytest.mark.long),
    ],
    ids=["together", "member first", "leader first"],
)
def test_a_stream_ends_complete_if_all_members_get_a_signal(
    group: Group, expected: str, order: Sequence[int], apart: float
) -> None:
    with ThreadPoolExecutor(1) as pool:
        found = start_stream(pool, group)
        began = time.monotonic()
        terminate([group.members[each] for each in order], apart)
        assert found.result(SECONDS) == expected
        print(f"the stream ended {time.monotonic() - began:.2f} s after the first signal")
    assert [group.members[each].end() for each in (0, 1)] == [0, 0]
    assert time.monotonic() - began < DRAIN_SECONDS
    for index in (1, 0):
        group.start(index)
    group.until_ready()


def test_a_stream_continues_on_the_replacement_of_a_member_that_leaves(group: Group, expected: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        found = start_stream(pool, group)
        leaving = group.members[1]
        terminate([leaving])
        began = time.monotonic()
        group.start(1)
        assert leaving.end() == 0
        ended = time.monotonic() - began
        assert not found.done()
        assert found.result(SECONDS) == expected
    print(f"the member ended after {ended:.2f} s")
    assert ended < RELEASE_SECONDS
    assert group.members[0].says("member 1 leaves")
    group.until_ready()
    assert (
        metrics_of(group.server)['plimsoll_group_generations_lost_total{cause="member_left",model="tiny",namespace=""}']
        == 1
    )


def test_a_member_that_has_not_joined_ends_at_once(
    group: Group, model: Path, machines: tuple[Machine, Machine], tmp_path: Path
) -> None:
    # The port of HTTP is that of the member which holds the place.
    options = (*group.options, "--port", "8001")
    with member(model, machines[1], machines[0], 1, tmp_path / "log", *options) as waiting:
        until(lambda: waiting.says("member 1 is"))
        began = time.monotonic()
        terminate([waiting])
        assert waiting.end() == 0
        assert time.monotonic() - began < RELEASE_SECONDS
