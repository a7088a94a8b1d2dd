"""The command line, without a running cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cluster import cli
from cluster.builder import push_image
from cluster.layout import SOURCE, Layout
from cluster.machine import Machine

VERBS = (
    "up",
    "down",
    "status",
    "images",
    "keda",
    "telemetry",
    "kubectl",
    "helm",
    "run",
    "build-image",
    "push-image",
    "freeze",
    "thaw",
)


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    """A checkout without a cluster."""
    layout = Layout(state=tmp_path / "state", cache=tmp_path / "cache")
    monkeypatch.setattr(cli, "find_layout", lambda environ, home: layout)
    return layout


@pytest.mark.parametrize("start", [[str(SOURCE)], ["-m", "cluster"]])
def test_it_starts_by_path_and_by_name_and_lists_its_verbs(start: list[str]) -> None:
    said = subprocess.run(
        [sys.executable, *start, "--help"], check=True, capture_output=True, text=True, cwd=SOURCE.parent
    ).stdout
    assert all(verb in said for verb in VERBS)


@pytest.mark.usefixtures("layout")
@pytest.mark.parametrize(
    "argv", [["kubectl", "get", "pods"], ["helm", "ls"], ["run", "--", "true"], ["freeze", "n2", "kubelet"]]
)
def test_a_command_for_a_cluster_that_is_down_says_how_to_start_it(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(argv) == 1
    assert "python3 e2e/cluster up" in capsys.readouterr().err


@pytest.mark.usefixtures("layout")
def test_run_needs_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "--"]) == 1
    assert "no command given" in capsys.readouterr().err


@pytest.mark.usefixtures("layout")
def test_status_of_nothing_is_a_failure_that_names_every_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status"]) == 1
    assert capsys.readouterr().out.count("not running") == 3


def test_options_of_the_command_are_not_ours(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[list[str]] = []
    monkeypatch.setattr(Machine, "enter", lambda self, *argv, mounts=False: ["enter", *argv])
    monkeypatch.setattr(os, "execvpe", lambda file, argv, env: became.append(argv))
    cli.main(["kubectl", "-n", "x", "get", "--help"])
    cli.main(["run", "--", "pytest", "--", "-k", "x"])
    assert became == [["enter", "kubectl", "-n", "x", "get", "--help"], ["enter", "pytest", "--", "-k", "x"]]
    assert layout.state.name == "state"


def test_up_without_root_says_so(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert cli.main(["up"]) == 1
    assert "needs root" in capsys.readouterr().err
    assert not layout.state.exists()


@pytest.mark.parametrize("name", ["plimsoll-operator:e2e", "registry.plimsoll.test/plimsoll-operator:e2e"])
def test_an_image_is_pushed_under_the_registrys_name_once(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    commands: list[list[str]] = []

    def push(argv: list[str], env: dict[str, str]) -> str:
        commands.append(argv)
        Path(argv[argv.index("--digestfile") + 1]).write_text("sha256:00")
        return ""

    monkeypatch.setattr(Machine, "enter", lambda self, *argv, mounts=False: [str(word) for word in argv])
    monkeypatch.setattr("cluster.builder.program", lambda name: name)
    monkeypatch.setattr("cluster.builder.run", push)
    reference = push_image(layout, Machine(layout, "hub"), name)
    assert reference == "registry.plimsoll.test/plimsoll-operator:e2e@sha256:00"
    assert commands[0][-2:] == [name, "docker://127.0.0.1:5000/plimsoll-operator:e2e"]


def test_a_chart_is_linted_without_a_cluster(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[list[str]] = []
    monkeypatch.setattr("cluster.lifecycle.build", lambda *arguments: became.append(["build"]))
    monkeypatch.setattr(os, "execvpe", lambda file, argv, env: became.append(argv))
    cli.main(["helm", "lint", "charts/x"])
    assert became == [["build"], ["helm", "lint", "charts/x"]]
    assert not layout.state.exists()
