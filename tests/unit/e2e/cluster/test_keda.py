"""KEDA in the cache: built once, always completely."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster import binaries, keda
from cluster.binaries import Binary
from cluster.errors import ClusterError
from cluster.layout import Layout
from cluster.progress import Progress


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(state=tmp_path / "state", cache=tmp_path / "cache")


@pytest.fixture
def builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The list of built files; the fake compiler writes one word."""
    built: list[str] = []
    definitions = tmp_path / "module" / "config" / "crd" / "bases"
    definitions.mkdir(parents=True)
    (definitions / "keda.sh_scaledobjects.yaml").write_text("kind: CustomResourceDefinition")

    def program(name: str) -> Binary:
        def build(target: Path, log: Path) -> None:
            built.append(name)
            target.write_text("program")

        return Binary(name, "v0", build)

    monkeypatch.setattr(keda, "OPERATOR", program("keda-operator"))
    monkeypatch.setattr(keda, "ADAPTER", program("keda-adapter"))
    monkeypatch.setattr(keda, "module_folder", lambda module, version: tmp_path / "module")
    monkeypatch.setattr(binaries, "link_tools", lambda layout: None)
    monkeypatch.setattr("cluster.binaries.shutil.which", lambda name: f"/usr/bin/{name}")
    return built


def test_both_programs_and_the_definitions_are_made_once(layout: Layout, builds: list[str]) -> None:
    for _ in range(2):
        keda.build_keda(layout, Progress())
    assert builds == ["keda-operator", "keda-adapter"]
    assert [path.name for path in keda.definitions(layout).iterdir()] == ["keda.sh_scaledobjects.yaml"]
    assert all(program.path(layout).exists() for program in (keda.OPERATOR, keda.ADAPTER))


@pytest.mark.usefixtures("builds")
def test_without_definitions_there_is_nothing_half_made(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(module: str, version: str) -> Path:
        raise ClusterError("the module proxy cannot be reached")

    monkeypatch.setattr(keda, "module_folder", unreachable)
    with pytest.raises(ClusterError, match="module proxy"):
        keda.build_keda(layout, Progress())
    assert not keda.definitions(layout).exists()


def test_it_is_no_part_of_what_a_cluster_needs() -> None:
    assert not {keda.OPERATOR, keda.ADAPTER} & set(binaries.ALL)
