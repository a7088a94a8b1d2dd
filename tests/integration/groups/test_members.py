"""A model is divided among two machines: answers are those of one rank, and every loss is recovered from."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from random import Random

import httpx
import psutil
import pytest
from groups_support.answers import assert_same, completed
from groups_support.clients import Client
from groups_support.machines import Machine, two_machines
from groups_support.members import START_SECONDS, Group, layout, member, running
from groups_support.ranks import steps_of, text, until
from server_support.process import Served, serving
from structured_support.models import spelling_model

OPTIONS = ("--dtype", "float32", "--max-batch-tokens", "32", "--check-integrity-every", "1", "--check-collectives")
RECOVERY = ("--recover-seconds", "120", "--step-timeout", "1")
PROMPTS: list[str | list[int]] = ["the answer is", [9, 2, 6] * 20, [5, 3] * 40, [7]]
STREAMS = [[n + 1, 3, 5] * (n + 1) for n in range(4)]
TOKENS = 300
NOTICE_SECONDS = 1.0
LOSSES = 50
SILENCE_SECONDS = 20.0
"""Time to notice a machine that does not answer: see `network.SILENT_SECONDS`."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return spelling_model(tmp_path_factory.mktemp("model"), num_attention_heads=6, num_key_value_heads=3, head_dim=16)


@pytest.fixture(scope="module")
def machines() -> Iterator[tuple[Machine, Machine]]:
    with two_machines() as found:
        yield found


@pytest.fixture(
    scope="module", params=[layout(2, 1), pytest.param(layout(1, 2), marks=pytest.mark.long)], ids=["tensor", "stages"]
)
def group(
    request: pytest.FixtureRequest,
    model: Path,
    machines: tuple[Machine, Machine],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Group]:
    """Two ranks, one on each machine: halves of each layer, or stages."""
    with running(model, machines, tmp_path_factory.mktemp("logs"), *OPTIONS, *RECOVERY, *request.param) as found:
        yield found


@pytest.fixture(scope="module")
def alone(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(model, tmp_path_factory.mktemp("log") / "alone", *OPTIONS) as server:
        yield server


def test_answers_are_those_of_one_rank(alone: Served, group: Group) -> None:
    server = group.server
    for prompt in PROMPTS:
        for options in ({"temperature": 0.0}, {"temperature": 0.8, "seed": 5, "n": 3}):
            assert_same(completed(alone, prompt, **options), completed(server, prompt, **options))


@pytest.mark.long
def test_prefixes_grammars_and_cancelled_streams(alone: Served, group: Group) -> None:
    server = group.server
    prompt = [3, 8] * 25
    # The server with one rank has the prompt from the group before.
    texts = [completed(each, prompt, temperature=0.0)[0][0] for each in (alone, server)]
    assert texts[0] == texts[1]
    second = completed(alone, prompt, temperature=0.0)
    assert second[0][2] == 48
    # On a busy machine a step may exceed its limit, and the next generation starts without prefixes.
    until(lambda: completed(server, prompt, temperature=0.0)[0][2] == 48)
    assert_same(second, completed(server, prompt, temperature=0.0))
    regex = {"structured_outputs": {"regex": "(yes|no)( maybe)*"}}
    options = {"temperature": 0.7, "seed": 3, "extra_body": regex, "max_tokens": 8}
    texts = [completed(each, "it is", **options)[0][0] for each in (alone, server)]
    assert texts[0] == texts[1]
    assert texts[0].strip().startswith(("yes", "no"))
    body = {"model": "tiny", "prompt": [4, 2], "max_tokens": 400, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as response:
        next(response.iter_lines())
    assert completed(server, [4, 2], temperature=0.0)
    metrics = httpx.get(f"{group.members[1].url}/metrics", timeout=10).text
    assert 'plimsoll_member_ready{member="1",model="tiny",namespace=""} 1.0' in metrics
    assert httpx.get(f"{group.members[1].url}/v1/models", timeout=10).status_code == 404


def kill_a_remote_rank(group: Group) -> None:
    group.members[1].rank(1).send_signal(signal.SIGKILL)


def kill_the_leaders_rank(group: Group) -> None:
    group.members[0].rank(0).send_signal(signal.SIGKILL)


def kill_a_member(group: Group) -> None:
    group.members[1].kill()


@pytest.mark.long
@pytest.mark.parametrize("loss", [kill_a_remote_rank, kill_the_leaders_rank, kill_a_member])
def test_streams_go_on_after_a_loss(group: Group, loss: Callable[[Group], None]) -> None:
    server = group.server
    expected = [text(server, prompt, TOKENS, n) for n, prompt in enumerate(STREAMS)]
    old = group.members[1].rank(1)
    with ThreadPoolExecutor(len(STREAMS)) as pool:
        found = pool.map(text, [server] * len(STREAMS), STREAMS, [TOKENS] * len(STREAMS), range(len(STREAMS)))
        steps = steps_of(server)
        until(lambda: steps_of(server) > steps + 20)
        loss(group)
        began = time.monotonic()
        until(lambda: group.members[0].status() == 503, NOTICE_SECONDS)
        until(lambda: not old.is_running() or old.status() == psutil.STATUS_ZOMBIE, NOTICE_SECONDS)
        assert group.members[0].status("/live") == 200
        if group.members[1].process.poll() is not None:
            group.start(1)
        else:
            assert group.members[1].status("/live") == 200
        steps = steps_of(server)
        until(lambda: steps_of(server) > steps)
        print(f"{loss.__name__}: steps run again {time.monotonic() - began:.2f} s after the loss")
        assert list(found) == expected
    group.until_ready()


@pytest.mark.long
def test_a_hung_remote_rank_is_named_and_replaced(group: Group) -> None:
    server = group.server
    expected = text(server, [3, 1], 20, 0)
    group.members[1].rank(1).send_signal(signal.SIGSTOP)
    assert text(server, [3, 1], 20, 0) == expected
    assert group.members[0].says("rank 1 of member 1 hangs: a step took more than")
    assert group.members[1].says("generation")


@pytest.mark.long
def test_a_member_that_does_not_answer_is_named(group: Group) -> None:
    server, agent = group.server, group.members[1].process
    expected = text(server, [3, 1], 20, 0)
    agent.send_signal(signal.SIGSTOP)
    group.members[1].rank(1).send_signal(signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        going_on = pool.submit(text, server, [3, 1], 20, 0)
        until(lambda: group.members[0].says("rank 1 of member 1, which does not answer, hangs"))
        agent.send_signal(signal.SIGCONT)
        assert going_on.result(START_SECONDS) == expected


@pytest.mark.long
@pytest.mark.parametrize("broken", [Machine.silence, Machine.unplugged])
def test_a_broken_network_is_noticed(group: Group, broken: Callable[[Machine], AbstractContextManager[None]]) -> None:
    server = group.server
    expected = text(server, [3, 1], 20, 0)
    began = time.monotonic()
    with broken(group.machines[1]):
        until(lambda: group.members[0].status() == 503, SILENCE_SECONDS)
        until(lambda: group.members[1].status() == 503, SILENCE_SECONDS)
        print(f"noticed after {time.monotonic() - began:.1f} s")
    assert text(server, [3, 1], 20, 0) == expected
    group.until_ready()


@pytest.mark.long
@pytest.mark.timeout(480)
def test_no_request_is_lost_at_any_instant(group: Group) -> None:
    """Ranks of both machines are killed and stopped at random instants, and member 1 is killed and restarted."""
    random, ended = Random(35), threading.Event()
    clients = [Client(group.server, number, 60, ended) for number in range(4)]
    for client in clients:
        client.start()
    for loss in range(LOSSES):
        ended.wait(random.uniform(0.0, 3.0))
        if loss % 10 == 9:
            group.members[1].kill()
            group.start(1)
            continue
        index = random.randrange(2)
        # There is no rank at the moment, if ranks are being replaced.
        with suppress(ValueError, psutil.NoSuchProcess):
            victim = group.members[index].rank(index)
            victim.send_signal(random.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP]))
    group.until_ready()
    ended.set()
    for client in clients:
        client.finish()


@pytest.mark.long
def test_members_join_a_restarted_leader(group: Group) -> None:
    expected = text(group.server, [3, 1], 20, 0)
    group.members[0].kill()
    began = time.monotonic()
    other = group.members[1]
    until(lambda: other.status() == 503, NOTICE_SECONDS)
    assert other.status("/live") == 200
    assert "connect to member 0 at" in httpx.get(f"{other.url}/health", timeout=10).json()["stage"]
    group.start(0)
    group.until_ready()
    print(f"a restarted leader is ready {time.monotonic() - began:.1f} s after its end")
    assert text(group.server, [3, 1], 20, 0) == expected


@pytest.mark.long
def test_a_member_that_differs_exits_and_others_go_on(group: Group, model: Path, tmp_path: Path) -> None:
    leader = group.machines[0]
    options = (*group.options, "--port", "8001")
    with member(model, leader, leader, 1, tmp_path / "differs", *options, "--block-size", "32") as found:
        assert found.end() == 2
        assert found.says("has block_size 32, but member 0 has 16")
    with member(model, leader, leader, 1, tmp_path / "token", *options, "--join-seconds", "1", token="x" * 16) as found:
        assert found.end() == 6
        assert found.says("PLIMSOLL_GROUP_TOKEN")
    with member(model, leader, leader, 1, tmp_path / "taken", *options, "--join-seconds", "1") as found:
        assert found.end() == 6
        assert found.says("member 1 is ")
    assert group.members[0].says("has block_size 32, but member 0 has 16")
    assert text(group.server, [3, 1], 20, 0)
    assert 'plimsoll_group_refused_connections_total{model="tiny",namespace=""} 0.0' not in group.server.metrics()
    assert all(each.status() == 200 for each in group.members.values())


@pytest.mark.long
@pytest.mark.parametrize("address", ["no-such-name.invalid:29500", "127.0.0.1:9"])
def test_a_leader_that_cannot_be_reached_ends_the_member(
    machines: tuple[Machine, Machine], model: Path, tmp_path: Path, address: str
) -> None:
    options = (*layout(2, 1), "--port", "8002", "--group-address", address, "--join-seconds", "1")
    with member(model, machines[1], machines[0], 1, tmp_path / "log", *options) as found:
        assert found.end() == 6
        assert found.says(f"cannot connect to member 0 at {address}")
        assert found.says("check --group-address, and that member 0 runs")
