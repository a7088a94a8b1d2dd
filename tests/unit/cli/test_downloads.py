"""`plimsoll models list --local` and `rm` on a cache in the hub library's layout; each command runs as a process."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from plimsoll_runtime.weights.sources.demo import GEMMA

FIRST, SECOND = "1" * 40, "2" * 40


class Disk:
    """A home directory with caches."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.hub = root / "hf" / "hub"
        self.demo = root / "cache" / "demo" / GEMMA.file
        self.environment = {
            **os.environ,
            "HOME": str(root),
            "HF_HOME": str(root / "hf"),
            "PLIMSOLL_CACHE": str(root / "cache"),
            "PLIMSOLL_MODEL_PATH": str(root / "image"),
            "XDG_STATE_HOME": str(root / "state"),
        }

    def revision(self, model: str, commit: str, files: dict[str, bytes], *refs: str) -> Path:
        folder = self.hub / f"models--{model.replace('/', '--')}"
        for name, content in files.items():
            blob, pointer = (
                folder / "blobs" / f"{len(content)}-{content[:4].hex()}",
                folder / "snapshots" / commit / name,
            )
            blob.parent.mkdir(parents=True, exist_ok=True)
            pointer.parent.mkdir(parents=True, exist_ok=True)
            blob.write_bytes(content)
            pointer.symlink_to(os.path.relpath(blob, pointer.parent))
        for ref in refs:
            (folder / "refs").mkdir(exist_ok=True)
            (folder / "refs" / ref).write_text(commit)
        (folder / "trees").mkdir(exist_ok=True)
        (folder / "trees" / f"{commit}.json").write_text("{}")
        return folder

    def models(self, *arguments: str, stdin: IO[bytes] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", "-m", "plimsoll_runtime", "models", *arguments],
            env=self.environment,
            capture_output=True,
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            text=True,
            timeout=120,
            check=False,
        )

    def listed(self) -> dict[str, list[str]]:
        _, *rows = self.models("list", "--local").stdout.splitlines()
        return {row.split()[0]: row.split()[1:] for row in rows}


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


def test_what_was_downloaded_is_listed_as_up_takes_it(disk: Disk) -> None:
    assert "no models are downloaded" in disk.models("list", "--local").stdout
    weights = {"config.json": b"{}", "model.safetensors": b"w" * 3 * 2**20}
    disk.revision("org/model", FIRST, weights, "main", "v9")
    disk.revision("org/model", SECOND, {"config.json": b"{ }"}, "v1")
    disk.revision("org/loose", SECOND, {"config.json": b"{ }"})
    disk.revision("one/gguf", FIRST, {"m-Q8_0.gguf": b"GGUF", "README.md": b""}, "main")
    disk.revision("two/gguf", FIRST, {"m-Q8_0.gguf": b"GGUF", "m-Q4_0.gguf": b"GGUF4"}, "main")
    (disk.hub / "models--org--cut" / "refs").mkdir(parents=True)
    (disk.hub / "models--org--cut" / "refs" / "main").write_text(FIRST)
    (disk.hub / "models--org--cut" / "blobs").mkdir()
    (disk.hub / "models--org--cut" / "blobs" / "x.incomplete").write_bytes(b"w" * 2**20)
    (disk.hub / "datasets--org--data" / "snapshots" / FIRST).mkdir(parents=True)
    disk.demo.parent.mkdir(parents=True)
    disk.demo.write_bytes(b"GGUF")
    found = disk.listed()
    assert found.keys() == {
        "hf://org/model",
        "hf://org/model@v1",
        f"hf://org/loose@{SECOND}",
        "hf://one/gguf:m-Q8_0.gguf",
        "hf://two/gguf",
        "hf://org/cut",
        "demo://gemma-3-270m",
    }
    assert found["hf://org/model"][:2] == ["3", "MiB"]
    assert found["hf://org/model"][-1] == "~/hf/hub/models--org--model"
    assert found["hf://two/gguf"][-3:] == ["2", "GGUF", "files"]
    assert found["hf://org/cut"][-1] == "unfinished"
    assert found["hf://org/cut"][0] == "1"


def test_a_revision_is_removed_whole_and_others_stay(disk: Disk) -> None:
    shared = {"tokenizer.json": b"[1, 2, 3]"}
    folder = disk.revision("org/model", FIRST, {**shared, "config.json": b"{}"}, "main")
    disk.revision("org/model", SECOND, {**shared, "config.json": b"{ }"}, "v1")
    done = disk.models("rm", "org/model@v1", "--yes")
    assert (done.returncode, done.stdout.split(":")[0]) == (0, "removed hf"), done.stderr
    assert disk.listed().keys() == {"hf://org/model"}
    assert (folder / "snapshots" / FIRST / "tokenizer.json").read_bytes() == b"[1, 2, 3]"
    assert not (folder / "trees" / f"{SECOND}.json").exists()
    assert sorted(path.read_bytes() for path in (folder / "blobs").iterdir()) == [b"[1, 2, 3]", b"{}"]
    (disk.hub / ".locks" / folder.name).mkdir(parents=True)
    assert disk.models("rm", f"hf://org/model@{FIRST}", "--yes").returncode == 0
    assert not folder.exists()
    assert not (disk.hub / ".locks" / folder.name).exists()


def test_what_is_unfinished_and_what_is_a_demos_is_removed(disk: Disk) -> None:
    cut = disk.hub / "models--org--cut"
    (cut / "blobs").mkdir(parents=True)
    (cut / "blobs" / "x.incomplete").write_bytes(b"w")
    disk.demo.parent.mkdir(parents=True)
    disk.demo.write_bytes(b"GGUF")
    for source in ("hf://org/cut", "demo://gemma-3-270m"):
        assert disk.models("rm", source, "--yes").returncode == 0
    assert not cut.exists()
    assert not disk.demo.exists()


@pytest.mark.matrix(2)
@pytest.mark.parametrize(
    ("source", "code", "words"),
    [
        ("hf://org/modle", 3, "hf://org/modle is not on this disk. Did you mean 'hf://org/model'?"),
        ("hf://org/model@v2", 3, "is not on this disk"),
        ("./model", 2, "your own folder or file"),
        ("file:///model", 2, "your own folder or file"),
        (
            "hf://two/gguf:Q8_0",
            2,
            "one of 2 GGUF files of a revision, and only whole revisions can be removed: name hf://two/gguf",
        ),
        ("demo://gemma-3-270m", 2, "a read-only folder of PLIMSOLL_MODEL_PATH"),
        ("hf://org/model", 2, "give --yes"),
    ],
)
def test_what_cannot_be_removed(disk: Disk, source: str, code: int, words: str) -> None:
    disk.revision("org/model", FIRST, {"config.json": b"{}"}, "main")
    disk.revision("two/gguf", FIRST, {"m-Q8_0.gguf": b"GGUF", "m-Q4_0.gguf": b"GGUF4"}, "main")
    packed = disk.root / "image" / "demo" / GEMMA.file
    packed.parent.mkdir(parents=True)
    packed.write_bytes(b"GGUF")
    before = disk.listed()
    done = disk.models("rm", source, *(() if words == "give --yes" else ("--yes",)))
    assert done.returncode == code
    assert words in done.stderr
    assert disk.listed().keys() == before.keys()


def test_a_terminal_is_asked(disk: Disk) -> None:
    folder = disk.revision("org/model", FIRST, {"config.json": b"{}"}, "main")
    for answer, code in (("n\n", 1), ("\n", 1), ("y\n", 0)):
        ours, theirs = pty.openpty()
        with os.fdopen(ours, "wb", buffering=0) as typed, os.fdopen(theirs, "rb") as read:
            typed.write(answer.encode())
            done = disk.models("rm", "hf://org/model", stdin=read)
        assert "Remove hf://org/model, 0 MiB in ~/hf/hub/models--org--model? [y/N]" in done.stdout
        assert (done.returncode, folder.exists()) == (code, bool(code))


@pytest.mark.parametrize(("source", "revision"), [("hf://org/model", None), ("hf://org/model:x.gguf", FIRST)])
def test_what_runs_is_not_removed(disk: Disk, source: str, revision: str | None) -> None:
    folder = disk.revision("org/model", FIRST, {"config.json": b"{}"}, "main")
    other = disk.revision("org/model", SECOND, {"config.json": b"{ }"}, "v1")
    run = disk.root / "state" / "plimsoll" / "8000"
    run.mkdir(parents=True)
    model = {"servedNames": ["gemma"], "source": source, "revision": revision}
    (run / "up.json").write_text(json.dumps({"models": [model]}))
    with (run / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = disk.models("rm", "hf://org/model", "--yes")
        assert done.returncode == 2
        assert "`plimsoll up` on port 8000 serves hf://org/model as gemma: stop it first" in done.stderr
        assert (folder / "snapshots" / FIRST).exists()
        assert disk.models("rm", "hf://org/model@v1", "--yes").returncode == 0
        assert not (other / "snapshots" / SECOND).exists()
    assert disk.models("rm", "hf://org/model", "--yes").returncode == 0
