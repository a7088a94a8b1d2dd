"""Groups on GPUs as parts of `make check-gpu`: reasons why one cannot run, and times of sums, measured on a CPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from gpu import groups
from gpu.harness import check_parts, session
from gpu.harness.part import SKIPPED, Status
from gpu.harness.session import Session


def test_the_parts_are_those_of_the_checks() -> None:
    names = [part.name for part in check_parts.PARTS if part.command[:2] == ("-m", "gpu.groups")]
    assert names == list(groups.NEEDED)


def test_a_part_with_too_few_gpus_says_so() -> None:
    assert groups.why_not("group-1", 0) == "group-1 needs 1 GPU, and torch finds none"
    assert groups.why_not("group-n", 1) == "group-n needs 2 GPUs, and torch finds 1"
    assert groups.why_not("group-n", 2) == groups.why_not("group-1", 1) == ""


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("name", groups.NEEDED)
def test_a_part_that_cannot_run_is_skipped_with_the_reason(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu.groups", name])
    assert groups.main() == SKIPPED
    assert f"{name} needs" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_ledger_has_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "LEAST_SECONDS", 0.0)
    part = next(each for each in check_parts.PARTS if each.name == "group-1")
    made = Session("check", tmp_path / "state", tmp_path / "out", {"gpu": "none"})
    record = made.perform([part]).parts["group-1"]
    assert (record.status, record.reason) == (Status.SKIPPED, "group-1 needs 1 GPU, and torch finds none")


def test_times_of_sums_over_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = groups.times("gloo", 2, "cpu", devices=1, kib=(3, 64))
    assert [(row.how, row.ranks, row.kib) for row in rows] == [("gloo", 2, 3), ("gloo", 2, 64)]
    assert all(0 < row.p50 <= row.p95 for row in rows)
    header, first, _ = groups.table(rows).splitlines()
    assert header.split() == ["sum", "over", "ranks", "ranks", "KiB", "p50", "us", "p95", "us"]
    assert first.split()[:3] == ["gloo", "2", "3"]


def test_a_rank_that_fails_ends_the_measurement() -> None:
    with pytest.raises(RuntimeError, match=r"ranks over no-such ended with \[1\]"):
        groups.times("no-such", 1, "cpu", devices=1)
