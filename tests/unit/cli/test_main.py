"""`plimsoll explain` and `plimsoll simulate` pass their arguments to the planner's command."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from plimsoll_cluster.keys import ObjectKey
from plimsoll_operator.placement.records.host import Host, Sleepers
from plimsoll_operator.placement.records.model import Model, Need
from plimsoll_operator.placement.records.pool import PoolState
from plimsoll_runtime.cli.main import main


def test_a_recorded_decision_is_explained(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = Model(ObjectKey("team", "m"), "1", (Need(40, host=40),))
    host = Host(ObjectKey("pool", "h1"), "n1", 100, 100, sleepers=Sleepers(100))
    state = tmp_path / "state.json"
    state.write_bytes(msgspec.json.encode(PoolState(1000.0, models=(model,), hosts=(host,))))
    assert main(["explain", str(state), "team/m"]) == 0
    assert "team/m, revision 1: priority 0" in capfd.readouterr().out


def test_options_are_the_planners_own(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--hours", "0.01", "--hosts", "1", "--models", "2", "--seed", "3"]) == 0
    assert "seconds of loading" in capfd.readouterr().out
    assert main(["simulate", "--hours", "none"]) == 2
    assert "'none' is not a number above 0" in capfd.readouterr().err
    assert main(["simulate", "--trace", "sawtooth"]) == 1
    assert "plimsoll simulate: --trace must be one of" in capfd.readouterr().err
