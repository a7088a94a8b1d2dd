"""Blocks as files: a read returns the written block, or raises an error."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from plimsoll_runtime.execution.kv.offload.block_files import HEADER, BlockFolder, CorruptBlockError

OURS, OTHER = bytes(32), bytes([1]) * 32
NAME, SECOND = bytes([2]) * 32, bytes([3]) * 32
DATA = bytes(range(256)) * 40


def read(folder: BlockFolder, name: bytes = NAME, size: int = len(DATA)) -> bytes:
    buffer = bytearray(size)
    folder.read(name, memoryview(buffer))
    return bytes(buffer)


def the_file(folder: BlockFolder) -> Path:
    (file,) = folder.path.glob("*.kv")
    return file


def test_what_is_written_is_read_and_deleted(tmp_path: Path) -> None:
    folder = BlockFolder(tmp_path / "new" / "folder", OURS)
    folder.write(NAME, memoryview(DATA))
    assert read(folder) == DATA
    folder.delete(NAME)
    folder.delete(NAME)
    with pytest.raises(FileNotFoundError):
        read(folder)
    assert folder.names() == []


def test_clearing_deletes_all_that_can_be_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = BlockFolder(tmp_path, OURS)
    for number in range(5):
        folder.write(bytes([number]) * 32, memoryview(DATA))
    plain = Path.unlink

    def unlink(self: Path, missing_ok: bool = False) -> None:
        if self.name.startswith("02"):
            raise PermissionError(self)
        plain(self, missing_ok=missing_ok)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", unlink)
        with pytest.raises(PermissionError):
            folder.clear()
    assert folder.names() == [NAME]
    folder.clear()
    assert folder.names() == []
    shutil.rmtree(folder.path)
    folder.clear()


def flip(position: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


@pytest.mark.parametrize(
    "rot",
    [
        *(
            pytest.param(flip(p), id=f"byte-{p}")
            for p in (0, 20, 50, 81, HEADER.size - 1, HEADER.size, HEADER.size + 999)
        ),
        pytest.param(lambda data: b"", id="empty"),
        pytest.param(lambda data: data[:10], id="half-a-header"),
        pytest.param(lambda data: data[: HEADER.size], id="no-data"),
        pytest.param(lambda data: data[:-1], id="cut"),
        pytest.param(lambda data: bytes(len(data)), id="zeros"),
    ],
)
def test_a_file_that_rots_is_noticed(tmp_path: Path, rot: Callable[[bytes], bytes]) -> None:
    folder = BlockFolder(tmp_path, OURS)
    folder.write(NAME, memoryview(DATA))
    file = the_file(folder)
    file.write_bytes(rot(file.read_bytes()))
    with pytest.raises(CorruptBlockError):
        read(folder)


def test_a_block_under_anothers_name_or_of_another_size_is_noticed(tmp_path: Path) -> None:
    folder = BlockFolder(tmp_path, OURS)
    folder.write(NAME, memoryview(DATA))
    with pytest.raises(CorruptBlockError, match="the wrong size"):
        read(folder, NAME, len(DATA) - 1)
    file = the_file(folder)
    file.rename(file.with_name(f"{SECOND.hex()}.kv"))
    with pytest.raises(CorruptBlockError, match="the wrong name"):
        read(folder, SECOND)


def test_the_next_engine_finds_what_this_one_left_the_latest_use_last(tmp_path: Path) -> None:
    folder = BlockFolder(tmp_path, OURS)
    for name, when in ((NAME, 1000), (SECOND, 2000)):
        folder.write(name, memoryview(DATA))
        os.utime(folder.path / f"{name.hex()}.kv", (when, when))
    assert folder.names() == [NAME, SECOND]
    read(folder, NAME)
    (folder.path / "draft").write_bytes(b"half a block")
    (folder.path / "no-name.kv").write_bytes(b"")
    folder.close()
    again = BlockFolder(tmp_path, OURS)
    assert again.path == folder.path
    assert again.names() == [SECOND, NAME]
    assert read(again) == DATA
    assert not (folder.path / "draft").exists()


def test_two_engines_share_a_folder_and_no_file(tmp_path: Path) -> None:
    one, other = BlockFolder(tmp_path, OURS), BlockFolder(tmp_path, OURS)
    one.write(NAME, memoryview(DATA))
    assert other.names() == []
    assert one.path != other.path


def test_what_another_model_left_is_deleted_unless_it_is_in_use(tmp_path: Path) -> None:
    gone, used = BlockFolder(tmp_path, OTHER), BlockFolder(tmp_path, bytes([9]) * 32)
    for folder in (gone, used):
        folder.write(NAME, memoryview(DATA))
    gone.close()
    somebody = tmp_path / "plimsoll-kv-notes"
    somebody.mkdir()
    ours = BlockFolder(tmp_path, OURS)
    assert ours.names() == []
    assert not gone.path.exists()
    assert used.names() == [NAME]
    assert somebody.exists()


def test_what_another_user_put_there_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone, same = BlockFolder(tmp_path, OTHER), BlockFolder(tmp_path, OURS)
    for folder in (gone, same):
        folder.write(NAME, memoryview(DATA))
        folder.close()
    somebody = os.geteuid() + 1
    monkeypatch.setattr("os.geteuid", lambda: somebody)
    ours = BlockFolder(tmp_path, OURS)
    assert ours.path not in (gone.path, same.path)
    assert ours.names() == []
    assert gone.names() == same.names() == [NAME]


def test_links_are_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    root = tmp_path / "root"
    expected = BlockFolder(root, OURS)
    expected.close()
    (expected.path / "lock").unlink()
    expected.path.rmdir()
    expected.path.symlink_to(target)
    (root / f"plimsoll-kv-{'7' * 16}-0").symlink_to(target)
    folder = BlockFolder(root, OURS)
    assert folder.path != expected.path
    folder.write(NAME, memoryview(DATA))
    (folder.path / "draft").symlink_to(target / "file")
    with pytest.raises(OSError, match="symbolic links"):
        folder.write(SECOND, memoryview(DATA))
    assert not list(target.iterdir())


def test_what_cannot_be_deleted_stays_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gone = BlockFolder(tmp_path, OTHER)
    gone.close()

    def refuse(path: Path, name: str) -> None:
        raise PermissionError(path)

    monkeypatch.setattr("plimsoll_runtime.utils.folder_lock.remove", refuse)
    BlockFolder(tmp_path, OURS).write(NAME, memoryview(DATA))
    assert gone.path.exists()
    assert "cannot delete" in caplog.text


def test_a_folder_that_is_deleted_while_it_is_claimed_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another engine, started at the same time, has just deleted it as unused."""
    plain, left = os.open, [True]

    def deleted_first(path: Path, flags: int, mode: int = 0o777) -> int:
        if left and Path(path).name == "lock":
            left.pop()
            Path(path).parent.rmdir()
        return plain(path, flags, mode)

    monkeypatch.setattr(os, "open", deleted_first)
    folder = BlockFolder(tmp_path, OURS)
    folder.write(NAME, memoryview(DATA))
    assert read(folder) == DATA
    assert [path.name for path in tmp_path.iterdir()] == [f"plimsoll-kv-{'0' * 16}-0"]


STARTS = """
import sys
from pathlib import Path
from plimsoll_runtime.execution.kv.offload.block_files import BlockFolder

root, number = Path(sys.argv[1]), int(sys.argv[2])
data = bytes([number]) * 1000
print("ready", flush=True)
sys.stdin.readline()
for _ in range(100):
    folder = BlockFolder(root, bytes([number]) * 32)
    for name in folder.names():
        folder.read(name, memoryview(bytearray(1000)))
    for name in range(3):
        folder.write(bytes([name]) * 32, memoryview(data))
    for name in range(3):
        read = bytearray(1000)
        folder.read(bytes([name]) * 32, memoryview(read))
        assert read == data
    folder.close()
print("kept all")
"""


def test_engines_that_start_at_the_same_moment_take_nothing_from_each_other(tmp_path: Path) -> None:
    """Each deletes unused folders repeatedly, but never one that an engine has open."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", STARTS, str(tmp_path), number],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in ("1", "1", "2")
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    assert [process.communicate() for process in processes] == [("kept all\n", "")] * 3


def test_another_fingerprint_in_our_folder_is_no_block_of_ours(tmp_path: Path) -> None:
    theirs, ours = BlockFolder(tmp_path / "a", OTHER), BlockFolder(tmp_path / "b", OURS)
    theirs.write(NAME, memoryview(DATA))
    the_file(theirs).rename(ours.path / f"{NAME.hex()}.kv")
    with pytest.raises(CorruptBlockError, match="the wrong fingerprint"):
        read(ours)
