from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from report import BEGIN, DOCUMENT, END, NOTHING, RESULTS, ReportError, place, read_runs, section
from serving.systems import LLAMA_CPP, OPENVINO, US


def run(**more: Any) -> dict[str, Any]:
    where = {
        "cpu": "A processor",
        "kind": "avx2",
        "cores": 2,
        "memory_gib": 8,
        "gpu": None,
        "date": "2026-01-02",
        "command": "python benchmarks/bench.py",
        "rounds": 5,
        "threads": 2,
        "scale": 1,
        "python": "3.11.0",
        "versions": {"torch": "2.0", "triton": None},
        "peers": {"openvino-genai": "1.0"},
    }
    probe = {"bandwidth_gb_s": 40.0, "gemm_gflop_s": 400, "cores_used_by_others": 0.01}
    workload = {
        "name": "W1",
        "title": "one request",
        "us": US,
        "tokens_per_second": {US: 120.4, OPENVINO: 60.2},
        "ratios": {OPENVINO: 2.0},
        "absent": {LLAMA_CPP: "not installed: make bench-peers"},
        "of_roofline": 1.04,
        "rounds": [{**probe, "systems": {US: {"seconds": 1.0}}}],
    }
    goal = {"work": "W1", "goal": "1.2x llama.cpp", "status": "not measured", "figure": "not installed", "value": None}
    return {"run": {**where, **more}, "workloads": [workload], "questions": {}, "goals": [goal]}


def test_a_run_is_told_with_its_machine_versions_goals_and_peers() -> None:
    text = section([run()])

    assert "### avx2: A processor, 2 cores, 8 GiB, 2026-01-02" in text
    assert "torch 2.0, openvino-genai 1.0." in text
    assert "triton" not in text
    assert "0 met, 0 missed, 1 not measured" in text
    assert "| W1: one request | 120 | 60 (2.00x) | not installed: make bench-peers | 104% * | - |" in text
    assert "Above 100 %" in text
    assert "| W1 | 40 / 40 / 40 | 400 / 400 / 400 | 0.01 / 0.01 / 0.01 |" in text


def test_kinds_of_processor_stand_side_by_side() -> None:
    other = run(kind="amx")
    other["goals"] = [{**other["goals"][0], "status": "met", "figure": "1.30x"}, {**other["goals"][0], "work": "W9"}]

    text = section([run(), other])

    assert "Goals (avx2: 0 met, 0 missed, 1 not measured; amx: 1 met, 0 missed, 1 not measured)" in text
    assert "| work | goal | avx2 | amx |" in text
    assert "| W1 | 1.2x llama.cpp | not installed not measured | 1.30x met |" in text
    assert "| W9 | 1.2x llama.cpp | - | not installed not measured |" in text


def test_two_runs_of_one_kind_are_refused() -> None:
    with pytest.raises(ReportError, match="two runs are of avx2"):
        section([run(), run()])


def test_only_what_stands_between_the_marks_changes() -> None:
    document = f"before\n{BEGIN}\nold\n{END}\nafter\n"

    assert place(document, "new") == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    assert place(place(document, "new"), "new") == place(document, "new")


@pytest.mark.parametrize("document", ["none", BEGIN, END + BEGIN, BEGIN + BEGIN + END])
def test_a_document_without_its_marks_is_refused(document: str) -> None:
    with pytest.raises(ReportError, match="needs the lines"):
        place(document, "text")


def test_a_look_is_no_result() -> None:
    with pytest.raises(ReportError, match=r"scale 0\.1"):
        section([run(scale=0.1)])


def test_results_of_single_benches_stay_out(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text(json.dumps({"cases": []}))
    (tmp_path / "whole.json").write_text(json.dumps(run()))

    assert read_runs(tmp_path) == [run()]
    assert section([]) == NOTHING


def test_the_document_says_what_the_results_say() -> None:
    document = DOCUMENT.read_text()

    assert place(document, section(read_runs(RESULTS))) == document
