"""What scenarios measure is kept by test, and goals are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness import figures


def test_figures_come_back_by_test(tmp_path: Path) -> None:
    figures.save(tmp_path, "test_a.py::test_x[some case]", {"seconds": 1.5})
    figures.save(tmp_path, "test_a.py::test_y", {})
    (tmp_path / "test_a-py-test_z.unfinished").write_text('{"test": "half of')
    assert figures.load(tmp_path) == {"test_a.py::test_x[some case]": {"seconds": 1.5}}


def test_goals_are_told_with_their_figures() -> None:
    wake = {"p95": 0.9, "goal_p95": 1.0, "goal": "met"}
    found: dict[str, dict[str, Any]] = {
        "test_a.py::test_x": {"small": wake, "load": {"requests": 3}},
        "test_b.py::test_y": {"seconds": 2},
    }
    assert figures.goals(found) == ["test_x: goal met: small p95 0.9, goal_p95 1.0"]
