"""Comparison of two trees: selected sources, confidence of ratios, and refused arguments."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from against import run as module
from against.run import LEAST, interval_of, run
from against.tree import Tree, UnknownCommit, tree_of
from options import Options
from tables import console


def test_an_interval_is_students() -> None:
    logs = [-0.1, 0.0, 0.1]
    found = interval_of([math.exp(log) for log in logs])
    half = 4.302653 * 0.1 / math.sqrt(3)  # Student's t for two degrees of freedom, from a table
    assert found.ratio == pytest.approx(1.0)
    assert (math.log(found.lower), math.log(found.upper)) == pytest.approx((-half, half), rel=1e-6)


def test_one_round_has_no_interval() -> None:
    with pytest.raises(ValueError, match="measure two rounds or more"):
        interval_of([1.0])


def test_the_sources_of_a_tree_come_before_those_installed(tmp_path: Path) -> None:
    (tmp_path / "runtime" / "plimsoll_runtime").mkdir(parents=True)
    (tmp_path / "runtime" / "plimsoll_runtime" / "__init__.py").write_text("WHOSE = 'the tree'\n")
    code = "import plimsoll_runtime; print(plimsoll_runtime.WHOSE)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=Tree(tmp_path, "x").environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "the tree\n"


def test_a_commit_that_is_not_there_is_refused() -> None:
    with pytest.raises(UnknownCommit, match="'no-such-commit' is no commit"):
        tree_of("no-such-commit")


@pytest.mark.parametrize(
    ("chosen", "reason"),
    [
        (Options(only=("W9",)), "--against measures W1, .*overhead, not W9"),
        (Options(rounds=1), "--rounds 1: an interval needs two"),
    ],
)
def test_what_cannot_be_measured_is_refused(chosen: Options, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("HEAD", chosen, console()) == 2
    [line] = capsys.readouterr().out.splitlines()
    assert re.match(reason, line)


@pytest.mark.parametrize(("now", "status"), [(1.0, 0), (1.0 / LEAST + 0.02, 1)])
def test_slower_than_the_goal_allows_is_a_failure(
    now: float, status: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = Tree(tmp_path, "0123456789abcdef")
    asked: list[Tree] = []

    def overhead(tree: Tree, chosen: Options) -> float:
        asked.append(tree)
        return (1.0 if tree is before else now) + 0.001 * (len(asked) % 3)

    monkeypatch.setattr(module, "tree_of", lambda commit: before)
    monkeypatch.setattr(module, "other_dependencies", lambda tree: [])
    monkeypatch.setattr(module, "_overhead", overhead)
    written: dict[str, Any] = {}
    monkeypatch.setattr("options.write", lambda chosen, results: written.update(results))
    assert run("HEAD~1", Options(rounds=4, only=("overhead",)), console()) == status
    assert [tree is before for tree in asked] == [True, False, False, True] * 2
    assert written["workloads"]["overhead"]["ratio"] == pytest.approx(1 / now, rel=0.01)
    assert "0123456789ab" in capsys.readouterr().out
