"""The operator reads what the runtime's `/health` answers."""

from __future__ import annotations

from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

from plimsoll_operator.status.leader_words import WAITING, read_words
from plimsoll_runtime.api.http.errors import json_response
from plimsoll_runtime.api.server.state import ServerState
from plimsoll_runtime.engine.protocol.messages import EngineStats, GroupStats
from plimsoll_runtime.errors import EngineDeadError
from plimsoll_runtime.parallel.instruction_sets import named
from plimsoll_runtime.utils.progress import DOWNLOAD, Transfer


def words(state: ServerState) -> str:
    return read_words(bytes(json_response(state.report, HTTPStatus.SERVICE_UNAVAILABLE).body))


def test_a_leader_that_starts() -> None:
    state = ServerState(("m",))
    assert words(state) == "start"
    state.loading(f"wait for {named([1, 2])}", 0.25)
    assert words(state) == "wait for members 1, 2"
    assert words(state).startswith(WAITING)
    state.loading(DOWNLOAD, 0.499, Transfer(499, 1000))
    assert words(state) == "download 40%"


def test_a_leader_whose_engine_has_died() -> None:
    state = ServerState(("m",))
    state.fail(EngineDeadError("a rank"))
    assert words(state) == "failed; engine-died"


def test_a_leader_that_recovers() -> None:
    group = GroupStats(reason="rank 3 was killed by signal 9", stage="load weights")
    stats = EngineStats(recovering=True, group=group)
    models: Any = SimpleNamespace(views=lambda: [SimpleNamespace(stats=stats)])
    state = ServerState(("m",))
    state.ready(models)
    assert words(state) == "rank 3 was killed by signal 9; load weights"
    stats = EngineStats(group=group)
    assert words(state) == ""
