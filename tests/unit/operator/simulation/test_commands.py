"""`simulate` and `explain` on the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec
import pytest

from plimsoll_cluster.keys import ObjectKey
from plimsoll_operator import __main__
from plimsoll_operator.placement.records.host import Host, Sleepers
from plimsoll_operator.placement.records.model import Model, Need
from plimsoll_operator.placement.records.pool import Demand, PoolState
from plimsoll_operator.simulation.commands import command

MODEL = Model(ObjectKey("team", "m"), "1", (Need(40, host=40),))
STATE = PoolState(
    1000.0,
    models=(MODEL,),
    hosts=(Host(ObjectKey("pool", "h1"), "n1", 100, 100, sleepers=Sleepers(100)),),
    demand=(Demand(MODEL.key, 2, 995.0),),
)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    path = tmp_path / "state.json"
    path.write_bytes(msgspec.json.encode(STATE))
    return path


def test_explain_tells_the_decision(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["explain", str(state), "team/m"]) == 0
    out = capsys.readouterr().out
    assert "2 requests waiting for 5.0 s" in out
    assert "place team/m on pool/h1 as Resident (Demand): 2 requests waited 5.0 s for it; 10 s to load" in out


def test_simulate_prints_what_a_made_up_trace_pays(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["simulate", "--trace", "bursty", "--hours", "0.05", "--hosts", "2", "--decisions"]) == 0
    out = capsys.readouterr().out
    assert "seconds of loading" in out
    assert "(Missing): no host has it yet" in out


def test_simulate_runs_a_recorded_trace(state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(json.dumps({"at": 1.0, "model": "team/m", "seconds": 2.0}))
    assert command(["simulate", "--state", str(state), "--trace", str(trace)]) == 0
    assert "seconds of loading      10.0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["explain", "STATE", "m"], "'m' is not NAMESPACE/NAME"),
        (["explain", "STATE", "team/x"], "the pool has no model team/x; it has team/m"),
        (["explain", "missing.json", "team/m"], "cannot read missing.json: No such file"),
        (["simulate", "--trace", "sawtooth"], "one of zipf, shifting, bursty, scan"),
        (["simulate", "--state", "STATE", "--trace", "missing.jsonl"], "cannot read missing.jsonl"),
    ],
)
def test_useless_input_is_told(state: Path, words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command([str(state) if word == "STATE" else word for word in words]) == 1
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    "content",
    [
        b'{"now": 1.0, "modles": []}',
        b'{"now": 1.0, "models": [{"key": "\xff"}]}',
        b'{"other": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b"",
    ],
)
def test_what_is_no_state_is_told(state: Path, content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    state.write_bytes(content)
    assert command(["explain", str(state), "team/m"]) == 1
    assert "is not a PoolState" in capsys.readouterr().err
    assert command(["simulate", "--state", str(state), "--trace", "x"]) == 1


def test_figures_out_of_bounds_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--hosts", "0"], ["--hours", "-1"], ["--line", "much"]):
        with pytest.raises(SystemExit):
            command(["simulate", *words])
    assert "is not an amount of memory" in capsys.readouterr().err


def test_the_operators_command_knows_them_too(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["explain", str(state), "team/m"]) == 0
    assert "Copies after the plan:" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        __main__.main(["explained"])
    assert "arguments are required: --runtime-image" in capsys.readouterr().err


@pytest.mark.parametrize("model", ["m", "mdep/m", "modeldeployment/m", "modeldeployments/m"])
def test_a_cluster_is_looked_at_only_with_its_client(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "plimsoll_cluster.connection", None)
    assert command(["explain", model]) == 1
    assert "pip install 'plimsoll-serving[operator]'" in capsys.readouterr().err


@pytest.mark.parametrize("model", ["md/m", "pod/m", "mdep/", "team/m/x"])
def test_only_a_model_can_be_explained(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["explain", model]) == 1
    assert f"{model!r} is not mdep/NAME" in capsys.readouterr().err
