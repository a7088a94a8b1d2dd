"""Keys in a folder that changes as the kubelet changes a mounted Secret."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest

from plimsoll_gateway.keys.key_folder import MOST_BYTES, KeyFolder, read_keys
from plimsoll_gateway.keys.secret import digest_of, new_key


def write(path: Path, *keys: str, **fields: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"hashes": [digest_of(key.encode()) for key in keys], **fields}))


def names(folder: Path) -> set[str]:
    found = read_keys(folder)
    found.check_integrity()
    return set(found.names)


def test_a_mounted_secret_is_read_and_renewed_by_its_link(tmp_path: Path) -> None:
    """The kubelet's layout: files that link to `..data`, which links to a folder named by time."""
    mount, one, other = tmp_path / "mount", new_key(), new_key()
    write(mount / "..2026_1" / "a.json", one)
    (mount / "..data").symlink_to("..2026_1")
    (mount / "a.json").symlink_to("..data/a.json")
    keys = KeyFolder(mount)
    assert {key.name for key in keys.current.by_hash.values()} == {"a"}
    write(mount / "..2026_2" / "a.json", one, other)
    (mount / "..new").symlink_to("..2026_2")
    os.replace(mount / "..new", mount / "..data")  # noqa: PTH105  the link itself, as the kubelet does
    keys.refresh()
    assert set(keys.current.by_hash) == {digest_of(key.encode()) for key in (one, other)}
    keys.current.check_integrity()


def test_secrets_in_folders_of_their_own_are_read_together(tmp_path: Path) -> None:
    for name in ("one/a", "other/b", "c"):
        write(tmp_path / f"{name}.json", new_key())
    assert names(tmp_path) == {"a", "b", "c"}


def test_a_secret_that_is_missing_is_named(tmp_path: Path) -> None:
    """The kubelet mounts an empty folder in its place."""
    write(tmp_path / "one" / "a.json", new_key())
    (tmp_path / "missing").mkdir()
    found = read_keys(tmp_path)
    assert found.names == {"a"}
    assert found.damaged == {"missing": "it has no keys; check that the Secret of this name exists"}


def test_one_damaged_file_costs_no_other_key(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    good, secret = new_key(), new_key()
    write(tmp_path / "good.json", good)
    (tmp_path / "bad.json").write_text(json.dumps({"hashes": [secret]}))
    (tmp_path / "note").write_text(secret)
    (tmp_path / "large.json").write_bytes(b" " * (MOST_BYTES + 1))
    (tmp_path / "gone.json").symlink_to("nowhere")
    with caplog.at_level(logging.DEBUG):
        keys = KeyFolder(tmp_path)
        keys.refresh()
    assert keys.current.names == {"good"}
    assert set(keys.current.damaged) == {"bad.json", "note", "large.json", "gone.json"}
    for file in keys.current.damaged:
        assert caplog.text.count(f"'{file}'") == 1, "each error is logged once"
    assert secret not in caplog.text
    assert good not in caplog.text


def test_of_two_with_one_name_or_hash_the_first_has_it(tmp_path: Path) -> None:
    shared = new_key()
    write(tmp_path / "one" / "a.json", shared)
    write(tmp_path / "one" / "b.json", shared)
    write(tmp_path / "other" / "a.json", new_key())
    found = read_keys(tmp_path)
    found.check_integrity()
    assert found.names == {"a"}
    assert found.damaged == {
        "one/b.json": "the key a already has one of its hashes",
        "other/a.json": "the key a is already in one/a.json",
    }


def test_a_key_whose_file_is_damaged_later_is_no_longer_let_in(tmp_path: Path) -> None:
    write(tmp_path / "a.json", new_key())
    keys = KeyFolder(tmp_path)
    (tmp_path / "a.json").write_text("{")
    keys.refresh()
    assert not keys.current.by_hash
    assert set(keys.current.damaged) == {"a.json"}


@pytest.mark.parametrize("empty", [True, False])
def test_without_keys_it_says_that_nobody_is_let_in(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, empty: bool
) -> None:
    keys = KeyFolder(tmp_path if empty else tmp_path / "missing")
    assert not keys.current.by_hash
    assert "all requests are refused" in caplog.text
    assert bool(keys.current.damaged) is not empty
