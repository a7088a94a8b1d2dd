"""The access log: which requests have a line, and what it says."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from plimsoll_gateway.telemetry.access_log import FIRST_ALIKE, AccessEntry, AccessLog
from plimsoll_gateway.telemetry.request_record import RequestRecord
from plimsoll_telemetry.log_format import JsonLines, TextLines
from plimsoll_telemetry.log_subject import LogSubject
from plimsoll_telemetry.logs import CountingHandler

if TYPE_CHECKING:
    from tests.unit.gateway.conftest import Behaviour, Request, World

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
NAME = "plimsoll_gateway.telemetry.access_log"


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[dict[str, Any]]]:
    """The fields of the lines so far, with their levels."""
    caplog.set_level(logging.INFO, NAME)

    def found() -> list[dict[str, Any]]:
        return [{**json.loads(JsonLines("gateway").format(r))} for r in caplog.records if r.name == NAME]

    return found


async def test_refused_requests_have_a_line(world: World, lines: Callable[[], list[dict[str, Any]]]) -> None:
    world.show(world.replica(1, ready=False))
    headers = {"x-request-id": "mine", "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
    for body in ({"model": "m"}, {"model": "secret-name"}):
        async with world.post(body, headers=headers):
            pass
    async with world.get("/v1/nowhere/secret-path"):
        pass
    not_ready, unknown, nowhere = lines()
    assert not_ready["message"].startswith("POST /v1/chat/completions 503 model_not_ready in ")
    assert {name: not_ready[name] for name in ("level", "request_id", "trace_id", "route", "status", "error")} == {
        "level": "WARNING",
        "request_id": "mine",
        "trace_id": TRACE,
        "route": "/v1/chat/completions",
        "status": 503,
        "error": "model_not_ready",
    }
    assert (not_ready["model"], not_ready["attempts"], not_ready["key"]) == ("ns/m", 0, None)
    assert not_ready["seconds"] == pytest.approx(sum(not_ready["phases"].values()), abs=1e-4)
    assert {"read", "admit"} <= not_ready["phases"].keys()
    assert (unknown["level"], unknown["status"], unknown["error"]) == ("INFO", 404, "model_not_found")
    assert unknown["model"] is None
    assert (nowhere["route"], nowhere["error"]) == ("other", "unknown_path")
    assert "secret" not in json.dumps(lines())


async def test_answered_requests_and_probes_have_none(
    world: World, ok: Behaviour, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    async with world.get("/health") as response:
        assert response.status == 503
    await world.model(ok)
    async with world.post() as response:
        assert response.status == 200
    assert lines() == []


async def test_a_failed_attempt_and_the_replicas_error(
    world: World, resets: Behaviour, unavailable: Behaviour, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    await world.model(resets, unavailable)
    async with world.post() as response:
        assert response.status == 503
    (line,) = lines()
    assert (line["status"], line["error"], line["attempts"], line["failure"]) == (503, None, 2, "reset")
    assert "2 attempts (the last failed: reset)" in line["message"]


async def test_a_response_that_breaks_off_has_a_line(world: World, lines: Callable[[], list[dict[str, Any]]]) -> None:
    async def breaks(request: Request) -> None:
        request.begin_events()
        request.chunk("data: 1\n\n")
        await request.writer.drain()
        request.die()

    await world.model(breaks)
    async with world.post() as response:
        await response.read()
    (line,) = lines()
    assert (line["level"], line["status"], line["error"]) == ("WARNING", 200, "stream_broken")


@pytest.mark.parametrize(("mode", "expected"), [("all", [200, 404]), ("errors", [404]), ("off", [])])
async def test_modes(
    run_world: Any, ok: Behaviour, lines: Callable[[], list[dict[str, Any]]], mode: str, expected: list[int]
) -> None:
    async with run_world(access_log=mode) as world:
        await world.model(ok)
        for name in ("m", "other"):
            async with world.post({"model": name}):
                pass
    assert [line["status"] for line in lines()] == expected


@pytest.mark.parametrize(("mode", "written"), [("errors", FIRST_ALIKE + 2), ("all", FIRST_ALIKE + 6)])
def test_a_flood_of_refusals_is_counted(mode: Any, written: int, tmp_path: Path) -> None:
    """The first requests of a kind have a line of their own; a line says how many there were beyond them."""
    logger = logging.getLogger(NAME)
    target = logging.FileHandler(tmp_path / "log")
    target.setFormatter(TextLines("gateway"))
    handler = CountingHandler(target)
    logger.addHandler(handler)
    try:
        for number in range(FIRST_ALIKE + 5):
            subject = LogSubject(f"r{number}")
            AccessLog(mode).write(AccessEntry("POST", "/x", 503, 0.1, subject, RequestRecord(), "overloaded"))
        AccessLog(mode).write(AccessEntry("POST", "/x", 502, 0.1, LogSubject("r"), RequestRecord(), "overloaded"))
    finally:
        logger.removeHandler(handler)
        handler.close()
        target.close()
    found = (tmp_path / "log").read_text().splitlines()
    assert len(found) == written
    assert ("POST /x 503 overloaded: repeated 5 more times" in found[-1]) == (mode == "errors")
