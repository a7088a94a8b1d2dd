"""Tokens in files: rotation, unreadable files, accepted and refused requests."""

import os
from hashlib import sha256
from pathlib import Path

import pytest

from plimsoll_runtime.api.host.access import FILE_LIMIT, Guard, file_tokens, hashed_tokens
from plimsoll_runtime.errors import UsageError


def replace(path: Path, content: str) -> None:
    """Replace a file as Kubernetes does, by renaming another one."""
    fresh = path.with_suffix(".new")
    fresh.write_text(content)
    fresh.rename(path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "tokens").write_text("\n first \nsecond\n")
    return tmp_path / "tokens"


@pytest.fixture
def guard(file: Path) -> Guard:
    return Guard(file_tokens(file))


def test_who_has_a_token_is_let_in(guard: Guard) -> None:
    for given, expected in {
        "Bearer first": True,
        "bearer  second": True,
        "Bearer third": False,
        "Bearer firs": False,
        "Bearer ": False,
        "Basic first": False,
        "first": False,
        "Bearer \u00e4": False,
        "": False,
    }.items():
        assert guard.lets_in(given) is expected, given
    assert not guard.lets_in(None)


def test_a_file_is_read_again_when_it_changes(guard: Guard, file: Path) -> None:
    replace(file, "second\nnew")
    assert [guard.lets_in(f"Bearer {token}") for token in ("first", "second", "new")] == [False, True, True]
    stamp = file.stat()
    file.write_text("second\nnow")  # the same length, in place
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns + 1))
    assert [guard.lets_in(f"Bearer {token}") for token in ("new", "now")] == [False, True]


def test_a_file_that_goes_away_leaves_its_last_tokens(
    guard: Guard, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file.unlink()
    assert guard.lets_in("Bearer first")
    assert "the previous content stays in force" in caplog.text
    replace(file, "x" * (FILE_LIMIT + 1))
    assert guard.lets_in("Bearer first")
    assert "larger than" in caplog.text


def test_a_file_that_is_emptied_lets_nobody_in(guard: Guard, file: Path, caplog: pytest.LogCaptureFixture) -> None:
    replace(file, "\n")
    assert not any(guard.lets_in(given) for given in ("Bearer first", "Bearer ", "Bearer", None))
    assert "all requests are refused" in caplog.text


def test_files_are_checked_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot be used .*No such file"):
        file_tokens(tmp_path / "none")
    (tmp_path / "empty").write_text("\n\n")
    with pytest.raises(UsageError, match="has no token"):
        file_tokens(tmp_path / "empty")


def test_without_tokens_everybody_is_let_in() -> None:
    guard = Guard(None)
    assert guard.is_open
    assert guard.lets_in(None)


def test_tokens_may_be_known_by_their_hashes() -> None:
    first, second = (sha256(token).hexdigest() for token in (b"first", b"second"))
    guard = Guard(hashed_tokens(f"{first}, {second}", "HASHES"))
    assert not guard.is_open
    given = {"first": True, "second": True, "third": False, first: False, "": False}
    assert {token: guard.lets_in(f"Bearer {token}") for token in given} == given


@pytest.mark.parametrize("text", ["", ",", "first", "0" * 63, "0" * 65, "0" * 64 + ",", "g" * 64])
def test_what_is_no_hash_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="HASHES must be comma-separated SHA-256"):
        hashed_tokens(text, "HASHES")
