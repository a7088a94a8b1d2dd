"""Measurements of scenarios are stored by test, and goals are printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness import figures


def test_figures_come_back_by_test(tmp_path: Path) -> None:
    figures.save(tmp_path, "test_a.py::test_x[some case]", {"seconds": 1.5})
    figures.save(tmp_path, "test_a.py::test_y", {})
    assert figures.load(tmp_path) == {"test_a.py::test_x[some case]": {"seconds": 1.5}}


def test_what_is_written_is_not_there_before_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []
    rename = Path.rename

    def look_first(self: Path, target: Path) -> Path:
        seen.append(figures.load(tmp_path))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", look_first)
    figures.save(tmp_path, "test_a.py::test_x", {"seconds": 1.5})
    assert seen == [{}]


def test_goals_are_told_with_their_figures() -> None:
    wake = {"p95": 0.9, "goal_p95": 1.0, "goal": "met"}
    found: dict[str, dict[str, Any]] = {
        "test_a.py::test_x": {"small": wake, "load": {"requests": 3}},
        "test_b.py::test_y": {"seconds": 2},
    }
    assert figures.goals(found) == ["test_x: goal met: small p95 0.9, goal_p95 1.0"]


def test_times_are_judged_by_a_percentile() -> None:
    found = figures.judged([3.0, 1.0, 2.0, 9.0], 3.0, 50)
    assert found == {"each": [3.0, 1.0, 2.0, 9.0], "p50": 2.0, "max": 9.0, "goal_p50": 3.0, "goal": "met"}
    assert figures.judged([3.0, 9.0], 5.0)["goal"] == "missed"
    assert figures.judged([], 5.0)["goal"] == "missed", "nothing was measured"
