"""Tokens in files: rotation, what cannot be read, who gets which rights."""

import os
from hashlib import sha256
from pathlib import Path

import pytest

from plimsoll_runtime.api.hosting.tokens import FILE_LIMIT, Guard, Rights, TokenFile, TokenHashes
from plimsoll_runtime.errors import UsageError


def replace(path: Path, content: str) -> None:
    """As Kubernetes does: another file takes the name."""
    fresh = path.with_suffix(".new")
    fresh.write_text(content)
    fresh.rename(path)


@pytest.fixture
def guard(tmp_path: Path) -> Guard:
    (tmp_path / "full").write_text("\n first \nsecond\n")
    (tmp_path / "wake").write_text("third")
    return Guard(TokenFile(tmp_path / "full"), TokenFile(tmp_path / "wake"))


def test_each_token_has_its_rights(guard: Guard) -> None:
    for given, rights in {
        "Bearer first": Rights.ALL,
        "bearer  second": Rights.ALL,
        "Bearer third": Rights.WAKE,
        "Bearer fourth": Rights.NONE,
        "Bearer firs": Rights.NONE,
        "Bearer ": Rights.NONE,
        "Basic first": Rights.NONE,
        "first": Rights.NONE,
        "Bearer \u00e4": Rights.NONE,
        "": Rights.NONE,
    }.items():
        assert guard.rights(given) is rights, given
    assert guard.rights(None) is Rights.NONE


def test_a_token_in_both_files_has_all_rights(tmp_path: Path) -> None:
    for name in ("full", "wake"):
        (tmp_path / name).write_text("same")
    guard = Guard(TokenFile(tmp_path / "full"), TokenFile(tmp_path / "wake"))
    assert guard.rights("Bearer same") is Rights.ALL


def test_a_file_is_read_again_when_it_changes(guard: Guard, tmp_path: Path) -> None:
    replace(tmp_path / "full", "second\nnew")
    assert [guard.rights(f"Bearer {token}") for token in ("first", "second", "new")] == [
        Rights.NONE,
        Rights.ALL,
        Rights.ALL,
    ]
    stamp = (tmp_path / "full").stat()
    (tmp_path / "full").write_text("second\nnow")  # the same length, in place
    os.utime(tmp_path / "full", ns=(stamp.st_atime_ns, stamp.st_mtime_ns + 1))
    assert (guard.rights("Bearer new"), guard.rights("Bearer now")) == (Rights.NONE, Rights.ALL)


def test_a_file_that_goes_away_leaves_its_last_tokens(
    guard: Guard, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "full").unlink()
    assert guard.rights("Bearer first") is Rights.ALL
    assert "held before goes on counting" in caplog.text
    replace(tmp_path / "full", "x" * (FILE_LIMIT + 1))
    assert guard.rights("Bearer first") is Rights.ALL
    assert "larger than" in caplog.text


def test_a_file_that_is_emptied_lets_nobody_in(guard: Guard, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    replace(tmp_path / "full", "\n")
    assert [guard.rights(given) for given in ("Bearer first", "Bearer ", "Bearer third")] == [
        Rights.NONE,
        Rights.NONE,
        Rights.WAKE,
    ]
    assert "nobody is let in by it" in caplog.text


def test_files_are_checked_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot be used .*No such file"):
        TokenFile(tmp_path / "none")
    (tmp_path / "empty").write_text("\n\n")
    with pytest.raises(UsageError, match="holds no token"):
        TokenFile(tmp_path / "empty")
    (tmp_path / "full").write_text("a")
    with pytest.raises(UsageError, match="nobody could place"):
        Guard(None, TokenFile(tmp_path / "full"))


def test_without_files_everybody_may_do_everything() -> None:
    guard = Guard(None, None)
    assert guard.is_open
    assert guard.rights(None) is Rights.ALL


def test_tokens_may_be_known_by_their_hashes() -> None:
    first, second, third = (sha256(token).hexdigest() for token in (b"first", b"second", b"third"))
    guard = Guard(TokenHashes(f"{first}, {second}", "HASHES"), TokenHashes(third, "HASHES"))
    given = ("first", "second", "third", first, "")
    assert [guard.rights(f"Bearer {token}") for token in given] == [
        Rights.ALL,
        Rights.ALL,
        Rights.WAKE,
        Rights.NONE,
        Rights.NONE,
    ]


@pytest.mark.parametrize("text", ["", ",", "first", "0" * 63, "0" * 65, "0" * 64 + ",", "g" * 64])
def test_what_is_no_hash_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="HASHES must be SHA-256"):
        TokenHashes(text, "HASHES")
