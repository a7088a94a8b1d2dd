"""The selection of scenarios, and the summary of their reports."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

from harness import runs
from harness.runs import Result

REPORT = """<?xml version="1.0" encoding="utf-8"?>
<testsuites><testsuite name="pytest">
<testcase classname="x" name="test_well" time="1.26"/>
<testcase classname="x" name="test_ill" time="2"><failure message="assert 1&#10; == 2">text</failure></testcase>
<testcase classname="x" name="test_ill" time="0.1"><error message="teardown">text</error></testcase>
<testcase classname="x" name="test_left" time="0"><skipped message="needs a node">text</skipped></testcase>
</testsuite></testsuites>"""


def test_every_scenario_is_found_and_can_be_chosen() -> None:
    assert "answers" in runs.names()
    assert runs.choose([]) == runs.names()
    assert runs.choose(["drain"]) == ["drain"]
    with pytest.raises(ValueError, match="unknown scenario nothing; choose from: answers"):
        runs.choose(["drain", "nothing"])


def test_a_whole_name_means_that_one_alone() -> None:
    assert runs.choose(["operator"]) == ["operator"]
    assert runs.choose(["operator_"]) == ["operator_killed"]


def test_each_chosen_scenario_has_one_turn() -> None:
    placed = [name for turn in runs.TURNS for lane in turn for name in lane]
    assert len(placed) == len(set(placed))
    assert set(placed) < set(runs.names())
    for chosen in (runs.names(), ["drain", "answers"], ["drain"]):
        for beside in (True, False):
            found = [name for turn in runs.turns(chosen, beside=beside) for lane in turn for name in lane]
            assert sorted(found) == sorted(chosen)


def test_turns_follow_each_other_and_their_lanes_go_beside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "TURNS", ((("pool",), ("canary", "answers")), (("wake",), ("drain",))))
    assert runs.turns(["answers", "canary", "drain", "pool", "upgrade"], beside=True) == [
        [["pool"], ["canary", "answers"]],
        [["drain"]],
        [["upgrade"]],
    ]
    assert runs.turns(["upgrade"], beside=True) == [[["upgrade"]]]
    assert runs.turns(["answers", "pool"], beside=False) == [[["answers"]], [["pool"]]]


def test_what_goes_on_beside_others_has_models_of_its_own() -> None:
    named = re.compile(r'(?:^MODELS? = (?:pool\.names\()?|\bCase\()"([-a-z]+)"', re.MULTILINE)
    found = {name: named.findall((runs.SCENARIOS / f"test_{name}.py").read_text()) for name in runs.names()}
    named_by = Counter(model for models in found.values() for model in set(models))
    assert {model for model, scenarios in named_by.items() if scenarios > 1} == set()
    assert [name for name, models in found.items() if not models] == ["answers"], "the README's own example"


def test_a_report_has_a_result_for_each_test() -> None:
    assert runs.parse("s", REPORT) == [
        Result("s", "test_well", "passed", 1.3),
        Result("s", "test_ill", "failed", 2.0, "assert 1 == 2"),
        Result("s", "test_left", "skipped", 0.0, "needs a node"),
    ]


def test_the_summary_says_what_did_not_pass_and_why() -> None:
    told = runs.summary(runs.parse("s", REPORT), {"s": 4.6, "longer": 5.1}, 8.0)
    assert "s: test_ill\n    assert 1 == 2" in told
    assert told.index("5 s  longer") < told.index("5 s  s\n")
    assert told.endswith("e2e: 1 failed, 1 passed, 1 skipped in 8 s")
    assert "no test ran" in runs.summary([], {}, 0.0)


def test_a_file_keeps_what_other_scenarios_have_measured() -> None:
    old = runs.merged({}, {"commit": "a"}, [{"scenario": "x", "test": "t"}, {"scenario": "y", "test": "t"}])
    new = runs.merged(old, {"commit": "b"}, [{"scenario": "x", "test": "t"}, {"scenario": "x", "test": "u"}])
    assert new["y"] == old["y"]
    assert new["x"] == {"run": {"commit": "b"}, "results": [{"scenario": "x", "test": name} for name in "tu"]}


@pytest.fixture
def scenarios(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(runs, "SCENARIOS", tmp_path)
    return tmp_path


@pytest.mark.long
def test_a_scenario_that_dies_is_a_failure(scenarios: Path) -> None:
    (scenarios / "test_dies.py").write_text("import os\n\ndef test_dies():\n    os._exit(7)\n")
    [result] = runs.run([], "dies", [], os.environ)
    assert (result.outcome, result.reason) == ("failed", "pytest ended with 7")


@pytest.mark.long
def test_a_scenario_runs_through_what_reaches_the_cluster(scenarios: Path) -> None:
    (scenarios / "test_asks.py").write_text(
        "import os\n\ndef test_one():\n    assert os.environ['WHERE'] == 'there'\n\ndef test_two():\n    pass\n"
    )
    through = [
        sys.executable,
        "-c",
        "import os, sys; os.environ['WHERE'] = 'there'; os.execv(sys.argv[1], sys.argv[1:])",
    ]
    results = runs.run(through, "asks", ["-k", "one"], os.environ)
    assert [(r.test, r.outcome) for r in results] == [("test_one", "passed")]
    assert runs.run(through, "asks", ["-k", "none"], os.environ) == []


def test_figures_are_kept_beside_their_test() -> None:
    [record] = runs.as_records([Result("s", "test_well", "passed", 1.0)], {"test_s.py::test_well": {"seconds": 3}})
    assert record["figures"] == {"seconds": 3}
