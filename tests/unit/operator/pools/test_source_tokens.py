"""Tokens of private sources: reading Secrets, messages about missing ones, and that tokens never show."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from typing import Any

import pytest
from operator_support.pooled import POOL, Process, World, run
from operator_support.server import NAMESPACE

from plimsoll_operator.build.host import HostKey
from plimsoll_operator.kube.api import ApiError
from plimsoll_operator.pools.model_placement import Problem
from plimsoll_operator.pools.source_tokens import LONGEST, LOOK_AGAIN_SECONDS, SourceTokens, Token, decode
from plimsoll_operator.spec.identity import KIND, Object, ObjectKey
from plimsoll_operator.spec.secret_item import SecretItem
from plimsoll_operator.status.reasons import Reason

SECRET, ITEM = ObjectKey("team", "hub"), SecretItem("team", "hub", "token")
OLD, NEW = "hf_OldOldOldOldOldOld", "hf_NewNewNewNewNewNew"
PRIVATE = {"source": "hf://org/private", "tokenSecret": {"name": "hub", "key": "token"}}


def encoded(token: str) -> str:
    return base64.b64encode(token.encode()).decode()


def asked(namespace: str = NAMESPACE) -> World:
    world = World()
    world.label(NAMESPACE)
    world.label("guests")
    world.ask_for_pool(1, namespaces={})
    world.server.readable.add(namespace)
    world.server.secrets[ObjectKey(namespace, "hub")] = {"token": encoded(OLD)}
    world.ask_for("m", model=PRIVATE, namespace=namespace, placement={"pool": POOL.name, "namespace": NAMESPACE})
    return world


def given(world: World) -> list[str | None]:
    """Return the tokens that hosts have."""
    return [model.spec.get("token") for host in world.hosts.values() for model in host.models.values()]


def placed(world: World) -> tuple[str, str]:
    found = next(c for c in world.server.objects[KIND]["m"]["status"]["conditions"] if c["type"] == "Placed")
    return found["reason"], found["message"]


@pytest.mark.parametrize("namespace", [NAMESPACE, "guests"])
def test_a_host_is_given_the_token_of_the_models_own_namespace(namespace: str) -> None:
    world = asked(namespace)
    world.server.secrets[ObjectKey("other" if namespace == NAMESPACE else NAMESPACE, "hub")] = {"token": encoded(NEW)}
    run(Process(world).settle())
    assert given(world) == [OLD]


def test_a_rotated_token_reaches_the_host_once_it_is_looked_at_again() -> None:
    world = asked()
    process = Process(world)
    run(process.settle())
    world.server.secrets[SECRET]["token"] = encoded(NEW)
    world.now += LOOK_AGAIN_SECONDS
    run(process.settle())
    assert given(world) == [NEW]
    before = process.api.asked.count("get Secret")
    world.now += LOOK_AGAIN_SECONDS
    run(process.settle())
    assert process.api.asked.count("get Secret") == before + 1, "looked at, and nothing came of it"
    (host,) = world.hosts.values()
    operations = len(host.operations)
    run(Process(world).settle())
    assert len(host.operations) == operations, "another process knows the same token by the same mark"


@pytest.mark.parametrize(
    ("spoil", "reason", "words"),
    [
        (lambda s: s.secrets.clear(), "TokenNotFound", "there is no Secret team/hub: create it"),
        (lambda s: s.secrets[SECRET].clear(), "TokenNotFound", "the Secret team/hub has no key token: add it"),
        (lambda s: s.readable.clear(), "TokenNotAllowed", "add it to operator.tokenNamespaces of the chart"),
        (
            lambda s: s.secrets[SECRET].update(token=encoded("two words")),
            "TokenInvalid",
            "is not a token: it must be one",
        ),
        (lambda s: s.secrets[SECRET].update(token="!!"), "TokenInvalid", "is not a token: it must be one line"),
    ],
)
def test_what_is_wrong_with_a_secret_is_a_condition_that_says_what_to_do(spoil: Any, reason: str, words: str) -> None:
    world = asked()
    spoil(world.server)
    process = Process(world)
    run(process.settle())
    assert given(world) == []
    assert placed(world)[0] == reason
    assert words in placed(world)[1]
    world.server.readable.add(NAMESPACE)
    world.server.secrets[SECRET] = {"token": encoded(NEW)}
    world.now += LOOK_AGAIN_SECONDS
    run(process.settle())
    assert given(world) == [NEW]


def test_a_model_that_runs_stays_when_its_secret_is_lost() -> None:
    world = asked()
    process = Process(world)
    run(process.settle())
    world.server.secrets.clear()
    world.now += LOOK_AGAIN_SECONDS
    run(process.settle())
    assert given(world) == [OLD]
    conditions = {c["type"]: c for c in world.server.objects[KIND]["m"]["status"]["conditions"]}
    assert conditions["Ready"]["status"] == "True"
    assert "there is no Secret team/hub" in conditions["Progressing"]["message"]


def test_nobodys_secret_is_read_for_a_model_that_the_pool_does_not_take() -> None:
    world = asked("guests")
    world.ask_for_pool(1)
    process = Process(world)
    run(process.settle())
    assert "get Secret" not in process.api.asked
    assert given(world) == []


def test_the_token_is_in_no_object_event_log_or_message(caplog: pytest.LogCaptureFixture) -> None:
    """While it is placed, rejected by a host that repeats its request, and rotated."""
    caplog.set_level(logging.DEBUG)
    world = asked()
    process = Process(world)
    run(process.settle())
    (host,) = world.hosts.values()
    host.refusals["m"] = f"401 Unauthorized for the token {NEW}"
    world.server.secrets[SECRET]["token"] = encoded(NEW)
    world.now += LOOK_AGAIN_SECONDS
    run(process.settle())
    everything = json.dumps([world.server.objects, world.server.told, process.api.events, process.api.asked])
    assert placed(world) is not None
    assert "401 Unauthorized" in everything + caplog.text, "the host's message is shown"
    for token in (OLD, NEW, encoded(OLD), encoded(NEW)):
        assert token not in everything
        assert token not in caplog.text
    for record in (process.pools.placer, process.pools.placer._tokens, Token(OLD, "mark")):
        assert OLD not in repr(record)


class Secrets:
    """Readable Secrets, and their errors."""

    def __init__(self) -> None:
        self.data: dict[str, str] | None = {"token": encoded(OLD)}
        self.error: ApiError | None = None
        self.reads = 0
        self.now = 0.0
        self.tokens = SourceTokens(self.read, HostKey(b"o" * 32).mark, lambda: self.now)

    async def read(self, key: ObjectKey) -> Object | None:
        assert key == SECRET
        self.reads += 1
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return None if self.data is None else {"data": self.data}

    async def ask(self) -> Token | Problem:
        return (await self.tokens.of([ITEM]))[ITEM]


async def test_an_outage_changes_nothing_that_is_known() -> None:
    secrets = Secrets()
    known = await secrets.ask()
    assert isinstance(known, Token)
    assert known.value == OLD
    secrets.error = ApiError(None, "the API server is not reachable")
    for _ in range(5):
        secrets.now += LOOK_AGAIN_SECONDS
        assert await secrets.ask() == known
    secrets.error = ApiError(403, "forbidden")
    secrets.now += LOOK_AGAIN_SECONDS
    refused = await secrets.ask()
    assert isinstance(refused, Problem)
    assert refused.reason is Reason.TOKEN_NOT_ALLOWED


async def test_an_outage_at_the_start_is_told_and_tried_again() -> None:
    secrets = Secrets()
    secrets.error = ApiError(503, "etcd is slow")
    found = await secrets.ask()
    assert isinstance(found, Problem)
    assert ", trying again: etcd is slow" in found.message
    assert found.keeps
    secrets.error = None
    secrets.now += LOOK_AGAIN_SECONDS
    assert isinstance(await secrets.ask(), Token)


async def test_a_secret_is_looked_at_once_a_minute_however_many_models_name_it() -> None:
    secrets = Secrets()
    for _ in range(20):
        secrets.now += LOOK_AGAIN_SECONDS / 20
        await secrets.tokens.of([ITEM] * 7)
    assert secrets.reads == 1
    await asyncio.gather(*(secrets.tokens.of([ITEM, ITEM]) for _ in range(3)))
    await secrets.tokens.of([])
    secrets.now += 3 * LOOK_AGAIN_SECONDS
    await secrets.tokens.of([])
    assert secrets.tokens._known == {}, "an item that no model names is dropped"


def test_marks_differ_as_tokens_do_and_show_nothing_of_them() -> None:
    key, other = HostKey(b"o" * 32), HostKey(b"p" * 32)
    assert key.mark(OLD) == key.mark(OLD)
    assert len({key.mark(OLD), key.mark(NEW), other.mark(OLD)}) == 3
    assert key.mark(f"host/{POOL}") != key.token(POOL)


@pytest.mark.parametrize(
    ("content", "token"),
    [
        (encoded("hf_a"), "hf_a"),
        (encoded(" hf_a\n"), "hf_a"),
        (encoded("x" * LONGEST), "x" * LONGEST),
        (encoded("x" * (LONGEST + 1)), None),
        (encoded(""), None),
        (encoded("\n"), None),
        (encoded("a\nb"), None),
        (encoded("a\x00b"), None),
        (encoded("hf_é"), None),
        (base64.b64encode(b"\xff\xfe").decode(), None),
        ("no base64!", None),
        ("aGZfYQ", None),
    ],
)
def test_only_one_line_of_printable_characters_is_a_token(content: str, token: str | None) -> None:
    assert decode(content) == token
