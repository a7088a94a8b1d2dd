"""The rules of a soak: each finds its faults, and none in correct measurements."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from plimsoll_runtime.api.model_directory import OneModel
from plimsoll_runtime.api.served_model import ServedModel
from plimsoll_runtime.api.server.state import ServerState
from plimsoll_runtime.api.telemetry.metrics import Metrics
from plimsoll_runtime.engine.protocol.messages import EngineInfo, EngineStats
from plimsoll_runtime.engine.scheduler.policies import POLICIES
from serving import models
from soak import client, verdict
from soak.growth import ALLOWED_GROWTH, ALLOWED_PEAK, MIB, Reading, growth
from soak.load import Tally, difference, merged
from soak.run import COUNTERS
from soak.server import Footprint, SoakedServer, parse_metrics
from soak.traffic import HUNG_UP, PREFIX_TOKENS, TOO_LATE, TOO_LATE_IN_STREAM, WHOLE, Ask, Traffic, probes, refusals

HOUR = range(0, 3600, 30)


def series(*sizes: float) -> list[Reading]:
    return [Reading(3.0 * i, round(size * MIB)) for i, size in enumerate(sizes)]


def test_a_level_with_noise_and_one_peak_is_no_growth() -> None:
    noise = random.Random(1)
    readings = [Reading(float(s), (600 + noise.randrange(4)) * MIB) for s in HOUR]
    readings[60] = Reading(readings[60].seconds, 650 * MIB)
    assert growth(readings).complaint is None
    assert abs(growth(readings).over_half) < MIB


def test_a_level_that_is_found_late_is_no_growth() -> None:
    assert growth(series(600, 610, 620, 650, 660, 660, *[670] * 20)).complaint is None


def test_a_leak_under_the_same_noise_is_found_with_its_size() -> None:
    noise = random.Random(1)
    leak = 20 * MIB / 3600
    readings = [Reading(float(s), round((600 + noise.randrange(4)) * MIB + leak * s)) for s in HOUR]
    found = growth(readings)
    assert found.per_hour / MIB == pytest.approx(20, abs=3)
    assert found.complaint is not None
    assert "MiB an hour), more than 6 MiB" in found.complaint


def test_the_allowances_are_where_the_rule_says() -> None:
    steps = 10
    rise = [i / (steps - 1) * ALLOWED_GROWTH / MIB for i in range(steps)]
    assert growth(series(*[0] * steps, *rise)).complaint is None
    assert growth(series(*[0] * steps, *(1.01 * r for r in rise))).complaint is not None
    peak = ALLOWED_PEAK / MIB
    assert growth(series(100 + peak, *[100] * 15)).complaint is None
    told = growth(series(101 + peak, *[100] * 15)).complaint
    assert told is not None
    assert "peaked 257.0 MiB above its median" in told


def test_memory_that_is_given_back_is_no_complaint_and_few_readings_are_one() -> None:
    assert growth(series(*range(100, 20, -5))).complaint is None
    with pytest.raises(ValueError, match="3 readings are too few"):
        growth(series(1, 2, 3))
    assert verdict.of_memory({"engine": series(1, 2, 3)}) == [
        "engine: 3 readings are too few to judge its memory; run longer"
    ]
    assert verdict.of_memory({"engine": series(*[9] * 20), "server": series(*range(0, 40, 2))}) == [
        "server: grew by 18.0 MiB in the second half (2400.0 MiB an hour), more than 6 MiB"
    ]


def test_a_block_that_is_held_by_nobody_is_found() -> None:
    idle = dict.fromkeys(verdict.IDLE, 0.0)
    assert verdict.of_idleness(idle) == []
    assert verdict.of_idleness(idle | {"plimsoll_kv_blocks_used": 1.0}) == [
        "plimsoll_kv_blocks_used is 1 on an idle server"
    ]


def test_a_soak_that_provoked_nothing_says_so() -> None:
    reached = dict.fromkeys(verdict.REACHED, 5.0)
    assert verdict.of_reach(reached) == []
    assert verdict.of_reach(reached | {"plimsoll_preemptions_total": 0.0}) == [
        "plimsoll_preemptions_total is 0: the load was too small to show anything about it"
    ]
    assert verdict.of_checks({"plimsoll_engine_steps_total": 1000.0}, 1000) == []
    assert verdict.of_checks({"plimsoll_engine_steps_total": 999.0}, 1000) != []


def test_descriptors_may_not_grow_and_threads_by_a_pool_at_most() -> None:
    before = {"server": Footprint(0, 20, 4)}
    assert verdict.of_handles(before, {"server": Footprint(0, 20, 10)}, spare_threads=6) == []
    assert verdict.of_handles(before, {"server": Footprint(0, 21, 11)}, spare_threads=6) == [
        "server: 21 open descriptors, 20 before the load",
        "server: 11 threads, 4 before the load",
    ]


def test_a_bad_end_and_errors_in_the_log_are_found() -> None:
    assert verdict.of_end(0, "2026-01-01 INFO all is well\n") == []
    log = "2026-01-01 ERROR it broke\nTraceback (most recent call last):\n"
    assert verdict.of_end(6, log) == [
        "the server ended with 6",
        "the log has 2 errors, first: 2026-01-01 ERROR it broke",
    ]


def test_every_series_that_is_judged_is_one_that_a_server_has() -> None:
    state = ServerState(("m", "other"))
    info = EngineInfo("m", "Llama", "float32", "cpu", "torch", 32, 64, 16, 7, 1 << 20, 1 << 16, [])
    engine: Any = SimpleNamespace(stats=EngineStats(blocks_total=7), info=info, pid=None)
    tokenizer: Any = None
    state.ready(OneModel(ServedModel(("m",), engine, tokenizer, 0)))
    samples = parse_metrics(Metrics(state).render().body.decode())
    assert {*verdict.IDLE, *verdict.REACHED, *COUNTERS.values(), "plimsoll_engine_steps_total"} <= set(samples)
    assert samples["plimsoll_kv_blocks"] == 7


def test_the_same_seed_gives_the_same_traffic_and_all_of_its_kinds() -> None:
    def drawn(seed: int) -> list[Ask]:
        traffic = Traffic(seed, "priority")
        return [traffic.next() for _ in range(2000)]

    asks = drawn(1)
    assert asks == drawn(1) != drawn(2)
    assert {a.kind for a in asks} == {
        "deadline",
        "hang-up",
        "long prompt",
        "shared prefix",
        "short prompt",
        "to be refused",
    }
    fields = {name for a in asks if isinstance(a.body, dict) for name in a.body}
    wanted = {"temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "logprobs", "stop", "cache_salt"}
    assert {*wanted, "priority", "deadline", "stream", "presence_penalty", "echo"} <= fields


def test_users_share_their_prefixes_whatever_their_seed() -> None:
    def prefixes(seed: int) -> set[tuple[int, ...]]:
        traffic = Traffic(seed, "fcfs")
        asks = [a for a in (traffic.next() for _ in range(300)) if a.kind == "shared prefix"]
        return {tuple(p[:PREFIX_TOKENS]) for a in asks if isinstance(a.body, dict) for p in a.body["prompt"]}

    assert prefixes(1) == prefixes(2)


def test_only_a_stream_of_several_answers_may_be_too_late_in_its_middle() -> None:
    traffic = Traffic(5, "fcfs")
    hurried = [a for a in (traffic.next() for _ in range(3000)) if a.kind == "deadline"]
    for ask in hurried:
        assert isinstance(ask.body, dict)
        several = ask.streams and len(ask.body["prompt"]) > 1
        assert (TOO_LATE_IN_STREAM in ask.expected) is several
    assert any(TOO_LATE_IN_STREAM in a.expected for a in hurried)


@pytest.mark.parametrize("policy", POLICIES)
def test_priorities_are_only_given_where_they_count(policy: str) -> None:
    traffic = Traffic(3, policy)
    asks = [a for a in (traffic.next() for _ in range(500)) if a.kind != "to be refused"]
    given = any(isinstance(a.body, dict) and "priority" in a.body for a in asks)
    assert given is (policy == "priority")
    refused = any(isinstance(a.body, dict) and "priority" in a.body for a in refusals(policy))
    assert refused is (policy != "priority")


@pytest.mark.long
async def test_a_real_server_refuses_what_is_to_be_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path))
    asks = refusals("priority")
    server = SoakedServer(models.source(models.TINY), models.TINY.kv_bytes, ["--policy", "priority", "--threads", "1"])
    try:
        async with client.session() as session:
            answers = [await client.send(session, server.url, ask) for ask in asks]
    finally:
        server.stop()
        server.close()
    assert [{answer.outcome} for answer in answers] == [ask.expected for ask in asks]


def test_probes_are_told_apart_by_their_kinds() -> None:
    kinds = [probe.kind for probe in probes()]
    assert len(set(kinds)) == len(kinds)
    assert probes() == probes()


def test_a_tally_keeps_few_findings_and_counts_all() -> None:
    tally = Tally()
    ask = Ask("k", {}, expected=frozenset({WHOLE, TOO_LATE}))
    for outcome in (WHOLE, TOO_LATE, *["500 engine_error"] * 30):
        tally.count(ask, outcome, 2)
    assert (tally.requests, tally.tokens, tally.wrong, len(tally.findings)) == (32, 64, 30, 20)
    assert tally.findings[0] == "k: '500 engine_error', expected 504 deadline_exceeded or whole"
    assert merged([tally.outcomes, tally.outcomes]) == {"k": {"500 engine_error": 60, TOO_LATE: 2, WHOLE: 2}}


def test_where_a_text_differs_is_said() -> None:
    assert difference(("a b", "c"), ("a b", "c")) is None
    assert difference(("a b", "c d"), ("a b", "c e")) == "choice 1 from word 1 on: 'e' instead of 'd'"
    assert difference(("a b",), ("a b c",)) == "of another length"
    assert difference(("a",), ()) == "of another length"


def whole(tokens: int, reason: str | None = "length") -> dict[str, Any]:
    return {
        "choices": [{"index": 0, "text": "w1 w2", "finish_reason": reason}],
        "usage": {"completion_tokens": tokens},
    }


@pytest.fixture
async def url() -> AsyncIterator[str]:
    """A server that behaves as a request's field "do" says."""

    async def answer(request: web.Request) -> web.StreamResponse:
        todo = (await request.json())["do"]
        if todo == "refuse":
            return web.json_response({"error": {"code": "invalid_value"}}, status=400)
        if todo == "hang":
            await asyncio.Event().wait()
        if todo == "cut":
            assert request.transport is not None
            request.transport.close()
        if todo != "stream":
            return web.json_response(whole(3, todo))
        response = web.StreamResponse()
        await response.prepare(request)
        one = b'data: {"choices": [{"index": 0, "text": "a", "finish_reason": null}]}\n\n'
        last = b'data: {"choices": [{"index": 0, "text": "b", "finish_reason": "stop"}], '
        await response.write(one + last + b'"usage": {"completion_tokens": 2}}\n\ndata: [DONE]\n\n')
        return response

    app = web.Application()
    app.router.add_post("/v1/completions", answer)
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/")


@pytest.mark.parametrize(
    ("todo", "options", "outcome"),
    [
        ("length", {"least": 3, "most": 3}, WHOLE),
        ("length", {"least": 4, "most": 4}, "wrong: 3 tokens instead of 4 to 4"),
        ("error", {"least": 3, "most": 3}, "wrong: finish reasons error"),
        (None, {"least": 3, "most": 3}, "wrong: finish reasons missing"),
        ("refuse", {}, "400 invalid_value"),
        ("hang", {"hang_up_seconds": 0.01}, HUNG_UP),
        ("cut", {}, "lost: ServerDisconnectedError"),
        ("stream", {"least": 2, "most": 2}, WHOLE),
        ("stream", {"hang_up_events": 1}, HUNG_UP),
    ],
)
async def test_what_became_of_a_request(url: str, todo: str | None, options: dict[str, Any], outcome: str) -> None:
    ask = Ask("k", {"do": todo, "stream": todo == "stream"}, **options)
    async with client.session() as session:
        answer = await client.send(session, url, ask)
    assert answer.outcome == outcome
    if outcome == WHOLE:
        assert answer == client.Answer(WHOLE, ("ab",) if todo == "stream" else ("w1 w2",), ask.most)
