"""Jaeger, Zipkin, Prometheus and Alertmanager in the cache: fetched once, always completely."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cluster import binaries, telemetry
from cluster.binaries import Binary
from cluster.errors import ClusterError
from cluster.layout import Layout
from cluster.progress import Progress


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(state=tmp_path / "state", cache=tmp_path / "cache")


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that were run; they leave what the real ones would."""
    found: list[list[str]] = []

    def run(argv: Sequence[str | Path], cwd: Path = Path("/"), **_: Any) -> str:
        words = [str(word) for word in argv]
        found.append(words)
        if "download" in words:
            (cwd / f"{words[-1].rstrip('*').replace('=', '_')}.0+ds-5_amd64.deb").write_text("package")
        elif words[0] == "dpkg-deb":
            (Path(words[-1]) / "usr" / "bin").mkdir(parents=True)
        elif words[0] == "mvn":
            folder = Path(words[-1].partition("=")[2])
            folder.mkdir()
            (folder / "zipkin-server-exec.jar").write_text("jar")
        return ""

    def build(target: Path, log: Path) -> None:
        found.append(["build", target.name])
        target.write_text("program")

    monkeypatch.setattr(telemetry, "run", run)
    monkeypatch.setattr(telemetry, "wait_for_lists", lambda: None)
    monkeypatch.setattr(telemetry, "JAEGER_BINARY", Binary("jaeger", "v0", build))
    monkeypatch.setattr(binaries, "link_tools", lambda layout: None)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    return found


def test_everything_is_fetched_once(layout: Layout, commands: list[list[str]]) -> None:
    for _ in range(2):
        telemetry.build_telemetry(layout, Progress())
    assert [words[0] for words in commands] == [*["apt-get"] * 2, "dpkg-deb", "apt-get", "dpkg-deb", "mvn", "build"]
    assert all((telemetry.package(layout, name) / "usr" / "bin").is_dir() for name in telemetry.DEBIAN_PACKAGES)
    assert telemetry.zipkin(layout).read_text() == "jar"
    assert telemetry.JAEGER_BINARY.path(layout).exists()
    assert not list(layout.binaries.glob(".*")), "no scratch folder is left"


@pytest.mark.parametrize(("lacking", "words"), [("apt-get", "no apt-get"), ("mvn", "install the package maven")])
@pytest.mark.usefixtures("commands")
def test_a_missing_program_is_named(layout: Layout, monkeypatch: pytest.MonkeyPatch, lacking: str, words: str) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None if name == lacking else f"/usr/bin/{name}")
    with pytest.raises(ClusterError, match=words):
        telemetry.build_telemetry(layout, Progress())


def test_a_download_that_fails_leaves_nothing(
    layout: Layout, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(argv: Sequence[str | Path], **_: Any) -> str:
        raise ClusterError("the mirror cannot be reached")

    monkeypatch.setattr(telemetry, "run", run)
    with pytest.raises(ClusterError, match="mirror"):
        telemetry.build_telemetry(layout, Progress())
    assert not [path for path in layout.binaries.rglob("*") if path.is_file()] if layout.binaries.exists() else True


def test_it_is_no_part_of_what_a_cluster_needs() -> None:
    assert telemetry.JAEGER_BINARY not in binaries.ALL
