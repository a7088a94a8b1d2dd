"""`plimsoll profile`: rejected options, and a complete profile of a tiny model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from model_support.tiny import make_model, save_model
from profiling_support.steps import quicken_probes

from plimsoll_runtime.cli.main import build_parser, main
from plimsoll_runtime.cli.profile import profile_options
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.profiling.trace import OPS as TRACK_OF_OPS
from plimsoll_runtime.profiling.trace import PROCESS
from plimsoll_runtime.profiling.workload import WORKLOADS, Workload

OPS = ["embed", "norm", "qkv", "rope", "attention", "output", "gate_up", "down", "head"]
PHASES = ["schedule", "inputs", "forward", "head", "sample", "commit", "message", "detokenise", "events"]


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    save_model(make_model("LlamaConfig", {"hidden_size": 64}), folder)  # heads of 16, which our kernels take
    return folder


@pytest.fixture(autouse=True)
def _quick_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    quicken_probes(monkeypatch)


def test_every_flag_reaches_its_field(tmp_path: Path) -> None:
    words = (
        "m --workload mixed --batch 7 --prompt-len 30 --output-len 9 --dtype float32 --threads 2 --kv-memory 1GiB "
        f"--trace {tmp_path}/t.json --json {tmp_path}/r.json"
    )
    options = profile_options(build_parser().parse_args(["profile", *words.split()]))
    assert options.workload == Workload("mixed", 7, 30, 9)
    assert options.engine == EngineConfig(model="m", dtype="float32", threads=2, kv_memory="1GiB")
    assert (options.trace, options.report) == (tmp_path / "t.json", tmp_path / "r.json")


def test_help_explains_phases_ops_and_workloads(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["profile", "--help"])
    assert ended.value.code == 0
    told = capsys.readouterr().out
    assert all(phase in told for phase in PHASES)
    assert all(f"{name}  " in told and what in told for name, what in WORKLOADS.items())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--batch", "0"], "0 is not between 1"),
        (["--prompt-len", "-5"], "-5 is not between 1"),
        (["--output-len", "many"], "'many' is not an integer"),
        (["--workload", "w2"], "invalid choice: 'w2'"),
        (["--threads", "0"], "0 is not between 1"),
        (["--port", "80"], "unrecognized arguments: --port"),
    ],
)
def test_impossible_values_exit_with_2_and_say_why(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["profile", "m", *words])
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--batch", "129"], "--batch 129 exceeds --max-sequences 128"),
        (["--max-model-len", "100"], "make 256 tokens, but the limit of a sequence is 100"),
        (["--max-model-len", "1"], "at least 2"),
        (["--trace", "/nowhere/t.json"], "the folder /nowhere does not exist"),
        (["--json", "/"], "is a folder; name a file"),
        (["--json", "/proc/plimsoll.json"], "cannot be written"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is_loaded(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plimsoll_runtime.cli.profile.os.access", lambda path, mode: not str(path).startswith("/proc"))
    assert main(["profile", "/no/model", *words]) == 2
    assert told in capsys.readouterr().err


def profiled(tiny_model: Path, *words: str) -> int:
    fixed = "--batch 3 --prompt-len 20 --output-len 6 --max-batch-tokens 32 --kv-memory 16MiB --threads 1"
    return main(["profile", str(tiny_model), *fixed.split(), *words])


@pytest.mark.parametrize("backend", ["torch", "auto"])
def test_a_profile_of_a_tiny_model(
    tiny_model: Path, tmp_path: Path, backend: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run with torch's decoder, and with the fastest one of the machine."""
    files = {"trace": tmp_path / "t.json", "json": tmp_path / "r.json"}
    flags = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    assert profiled(tiny_model, "--attention-backend", backend, *flags) == 0
    told = capsys.readouterr().out
    assert all(f" {name} " in told for name in (*OPS, *PHASES, "roofline"))
    check_report(json.loads(files["json"].read_text()))
    check_trace(json.loads(files["trace"].read_text())["traceEvents"])
    assert backend in ("auto", json.loads(files["json"].read_text())["attention_backend"])


def check_report(report: dict[str, Any]) -> None:
    assert (report["batch"], report["prompt_tokens"], report["output_tokens"]) == (3, 60, 18)
    assert {"cpu", "torch", "command", "date"} <= report["provenance"].keys()
    prefill, decode = report["steps"]
    assert (prefill["kind"], prefill["steps"], decode["kind"]) == ("prefill", 2, "decode")
    assert decode["steps"] >= 5
    for figures in (prefill, decode):
        assert [p["phase"] for p in figures["phases"]] == PHASES
        assert sum(p["share"] for p in figures["phases"][:6]) == pytest.approx(1)
        ops = {op["op"]: op for op in figures["ops"]}
        assert [name for name in ops if name not in ("around", "all")] == OPS
        assert all(op["seconds"] > 0 for op in ops.values())
        assert sum(op["seconds"] for name, op in ops.items() if name != "all") == pytest.approx(ops["all"]["seconds"])
        assert all(op["bytes"] > 0 for name, op in ops.items() if name != "around")


def check_trace(events: list[dict[str, Any]]) -> None:
    names = {e["name"] for e in events}
    assert set(PHASES) <= names
    assert "prefill 1" in names
    assert any(e.get("cat") == "cpu_op" for e in events)
    assert {e["name"] for e in events if e["pid"] == PROCESS and e["tid"] == TRACK_OF_OPS} == {*OPS[:-1], "thread_name"}


def test_a_batch_that_the_cache_cannot_hold_is_refused(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert profiled(tiny_model, "--kv-memory", "100KiB", "--prompt-len", "64") == 2
    assert "raise --kv-memory" in capsys.readouterr().err
