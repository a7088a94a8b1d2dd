"""The command creates keys that the gateway accepts, and stores only their hash."""

from __future__ import annotations

from pathlib import Path

import pytest

from plimsoll_gateway.keys.batch_limits import BatchLimits
from plimsoll_gateway.keys.command import main
from plimsoll_gateway.keys.key_folder import read_keys
from plimsoll_gateway.keys.secret import digest_of


def test_a_key_is_made_and_shown_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    terms = ["--model", "qwen*", "--model", "m", "--requests-per-minute", "60", "--tokens-per-minute", "9000",
             "--streams", "3", "--priority", "-1", "--weight", "7", "--tenant", "t",
             "--batches", "2", "--batch-share", "50"]  # fmt: skip
    assert main(["team-a", "--into", str(tmp_path), *terms]) == 0
    shown = capsys.readouterr()
    key = shown.out.strip()
    assert key not in (tmp_path / "team-a.json").read_text()
    assert key not in shown.err
    found = read_keys(tmp_path).by_hash[str(digest_of(key.encode()))]
    assert (found.name, found.tenant, found.limits.models) == ("team-a", "t", ("qwen*", "m"))
    limits = found.limits
    assert (limits.requests_per_minute, limits.tokens_per_minute, limits.streams) == (30, 4500, 3)
    assert found.batch == BatchLimits(("qwen*", "m"), 2, 15, 2250)
    assert (limits.priority, limits.weight) == (-1, 7)


def test_a_file_that_is_there_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["a", "--into", str(tmp_path)]) == 0
    before = (tmp_path / "a.json").read_bytes()
    capsys.readouterr()
    assert main(["a", "--into", str(tmp_path)]) == 1
    shown = capsys.readouterr()
    assert (tmp_path / "a.json").read_bytes() == before
    assert shown.out == ""
    assert "exists; delete it" in shown.err


@pytest.mark.parametrize("bad", [["a/b"], ["a", "--weight", "0"], ["a", "--tenant", "x y"], ["a", "--streams", "0"]])
def test_bad_terms_make_no_file(tmp_path: Path, bad: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*bad, "--into", str(tmp_path)])
    assert ended.value.code == 2
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["a", "--into", str(tmp_path / "nowhere")]) == 1
    shown = capsys.readouterr()
    assert (shown.out, "cannot write" in shown.err) == ("", True)
