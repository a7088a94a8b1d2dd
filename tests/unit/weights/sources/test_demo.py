"""Joining the demo model is atomic, even with concurrent, killed or damaged joins."""

from __future__ import annotations

import fcntl
import hashlib
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from plimsoll_runtime.errors import SourceError
from plimsoll_runtime.text.chat_template import ChatTemplate
from plimsoll_runtime.weights.sources import demo
from plimsoll_runtime.weights.sources.demo import EXAMPLES, GEMMA, DemoModel, fetch_demo, find_demo, unseen_terms

PARTS = (b"first" * 300_000, b"second" * 200_000, b"third")
WHOLE = b"".join(PARTS)
MODEL = replace(
    GEMMA,
    name="small",
    package="small_model",
    file="small.gguf",
    sha256=hashlib.sha256(WHOLE).hexdigest(),
    terms="Terms.",
)
PACKAGE = """
from pathlib import Path
def chunk_paths():
    return sorted(Path(__file__).parent.glob("part*"))
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make a package of three parts, importable here and in child processes, and an empty cache."""
    root = tmp_path / "packages" / "small_model"
    root.mkdir(parents=True)
    (root / "__init__.py").write_text(PACKAGE)
    for number, content in enumerate(PARTS):
        (root / f"part{number}").write_bytes(content)
    monkeypatch.syspath_prepend(str(root.parent))
    monkeypatch.setenv("PYTHONPATH", str(root.parent), prepend=os.pathsep)
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PLIMSOLL_MODEL_PATH", raising=False)
    yield root
    sys.modules.pop("small_model", None)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "demo" / "small.gguf"


def fetch(model: DemoModel = MODEL) -> Path:
    return fetch_demo(model, lambda stage, fraction: None)


def left(place: Path) -> list[str]:
    """Return the files of the folder except the lock."""
    return sorted(p.name for p in place.parent.iterdir() if not p.name.endswith(".lock"))


def test_the_parts_are_joined_once(package: Path, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[tuple[str, float]] = []
    assert fetch_demo(MODEL, lambda *at: seen.append(at)) == place
    assert place.read_bytes() == WHOLE
    assert left(place) == ["small.gguf"]
    assert {stage for stage, _ in seen} == {"join the model's parts"}
    fractions = [fraction for _, fraction in seen]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert capsys.readouterr().err == "Terms.\n"
    (package / "part1").unlink()
    assert fetch() == place
    assert capsys.readouterr().err == "", "the terms are shown when the model is made, and not again"


def test_the_terms_are_unseen_until_the_model_is_made(
    package: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "MODELS", {"small": MODEL})
    assert unseen_terms("demo://small") == "Terms."
    assert unseen_terms("small") is None
    assert unseen_terms("demo://other") is None
    fetch()
    assert unseen_terms("demo://small") is None


def test_a_chat_ends_where_a_line_of_the_answer_begins() -> None:
    """After "Answer:" on the same line the model's output would start with a space."""
    template = ChatTemplate({"default": GEMMA.chat_template}, {"bos_token": "<bos>"})
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": " Where? "},
        {"role": "assistant", "content": "Here."},
        {"role": "user", "content": "When?"},
    ]
    text = template.render(messages)
    said = "Be brief.\n\n### Question:\nWhere?\n\n### Answer:\nHere.\n\n### Question:\nWhen?\n\n### Answer:\n"
    assert text.endswith("\n\n" + said)
    shown = text.removesuffix(said)
    assert shown == "<bos>" + "".join(f"### Question:\n{q}\n\n### Answer:\n{a}\n\n" for q, a in EXAMPLES)
    assert all(text.count(stop) for stop in GEMMA.chat_stop), "each stop is what would follow an answer"


def test_a_read_only_cache_is_searched_first(
    package: Path, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = tmp_path / "image" / "demo" / "small.gguf"
    image.parent.mkdir(parents=True)
    image.write_bytes(WHOLE)
    monkeypatch.setenv("PLIMSOLL_MODEL_PATH", f"{tmp_path / 'none'}{os.pathsep}{tmp_path / 'image'}")
    assert fetch() == image
    assert not place.parent.exists()


def test_an_unknown_demo_model() -> None:
    with pytest.raises(SourceError, match="no demo model 'gemma'; available: demo://gemma-3-270m"):
        find_demo("gemma")


def test_a_missing_package(place: Path, package: Path) -> None:
    with pytest.raises(SourceError, match=r"demo://small needs its package: pip install 'plimsoll-serving\[demo\]'"):
        fetch(replace(MODEL, package="no_such_package"))
    assert left(place) == []


@pytest.mark.parametrize(
    "damage", [b"", b"first" * 299_999 + b"fIrst", b"first" * 300_001], ids=["empty", "bit", "long"]
)
def test_a_damaged_part(package: Path, place: Path, damage: bytes) -> None:
    (package / "part0").write_bytes(damage)
    with pytest.raises(SourceError, match=r"small\.gguf: the parts do not match the expected checksum; reinstall"):
        fetch()
    assert left(place) == []
    (package / "part0").write_bytes(PARTS[0])
    assert fetch().read_bytes() == WHOLE


def test_a_missing_part(package: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (package / "__init__.py").write_text(PACKAGE.replace("sorted(", "[Path('part9')] or sorted("))
    with pytest.raises(SourceError, match=r"demo://small: part9 is missing; reinstall plimsoll-serving\[demo\]"):
        fetch()
    assert left(place) == []


def test_a_full_disk(package: Path, place: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, hard))
    try:
        with pytest.raises(SourceError, match=r"cannot write .*small\.gguf: .*free some space or set PLIMSOLL_CACHE"):
            fetch()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert left(place) == []
    assert fetch() == place


@pytest.fixture
def sealed() -> Iterator[Path]:
    """Make a read-only cache with the folder and lock of an earlier join."""
    if os.geteuid() != 0:
        pytest.skip("only root can switch to a user without write access")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "demo"
        folder.mkdir()
        (folder / ".small.gguf.lock").touch(0o666)
        for path in (Path(name), folder):
            path.chmod(0o755)
        (folder / ".small.gguf.lock").chmod(0o666)
        yield Path(name)


@pytest.mark.parametrize("lock", [True, False], ids=["the-lock-may-be-opened", "nothing-may"])
def test_a_cache_that_may_not_be_written(
    package: Path, sealed: Path, lock: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLIMSOLL_CACHE", str(sealed))
    if not lock:
        (sealed / "demo" / ".small.gguf.lock").unlink()
    (sealed / "part").write_bytes(WHOLE)
    monkeypatch.setattr(demo, "_parts", lambda model: [sealed / "part"])
    os.seteuid(65534)
    try:
        with pytest.raises(SourceError, match=r"Permission denied.*PLIMSOLL_CACHE"):
            fetch()
    finally:
        os.seteuid(0)
    (sealed / "demo" / "small.gguf").write_bytes(WHOLE)
    os.seteuid(65534)
    try:
        assert fetch() == sealed / "demo" / "small.gguf", "existing files can be read"
    finally:
        os.seteuid(0)


def test_a_cache_that_is_no_folder(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path / "file"))
    with pytest.raises(SourceError, match=r"the cache .*file/demo is not writable .*set PLIMSOLL_CACHE"):
        fetch()


CHILD = """
import sys
from plimsoll_runtime.weights.sources.demo import DemoModel, fetch_demo
def progress(stage, fraction):
    if "slow" in sys.argv:
        print("joining", flush=True)
        sys.stdin.readline()
    elif "loud" in sys.argv:
        print("joining", flush=True)
model = DemoModel("small", "small_model", "small.gguf", sys.argv[1], "Terms.", "", (), "", {})
print("starting", flush=True)
print(fetch_demo(model, progress), flush=True)
"""


def child(manner: str) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", CHILD, MODEL.sha256, manner]
    process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert line(process) == "starting"
    return process


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_two_processes_at_once(package: Path, place: Path) -> None:
    """The first process is held during its join; the second waits and joins nothing."""
    first = child("slow")
    assert line(first) == "joining"
    assert left(place) == [".small.gguf.part"]
    with (place.parent / ".small.gguf.lock").open("w") as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    second = child("loud")
    assert not place.exists()
    rest, _ = first.communicate("\n" * 100, timeout=60)
    assert rest.splitlines()[-1] == str(place)
    assert second.communicate(timeout=60)[0].splitlines() == [str(place)]
    assert (first.returncode, second.returncode) == (0, 0)
    assert place.read_bytes() == WHOLE


def test_a_join_that_is_killed(package: Path, place: Path) -> None:
    first = child("slow")
    assert line(first) == "joining"
    second = child("loud")
    first.kill()
    first.communicate(timeout=60)
    joined = second.communicate(timeout=60)[0].splitlines()
    assert joined[0] == "joining", "the next join starts over"
    assert joined[-1] == str(place)
    assert place.read_bytes() == WHOLE
    assert left(place) == ["small.gguf"], "nor is anything left of the first"


def test_what_a_killed_join_leaves_is_no_model(package: Path, place: Path) -> None:
    first = child("slow")
    assert line(first) == "joining"
    first.kill()
    first.communicate(timeout=60)
    assert left(place) == [".small.gguf.part"]
    assert fetch() == place
    assert left(place) == ["small.gguf"]
    assert place.read_bytes() == WHOLE
