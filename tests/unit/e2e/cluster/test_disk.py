"""Free disk space, and the report about daemons that ended because the disk was full."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cluster import disk, status
from cluster.errors import ClusterError
from cluster.layout import Layout


def test_too_little_room_is_refused_with_the_numbers(tmp_path: Path) -> None:
    disk.require(tmp_path, 1, "a cluster")
    with pytest.raises(ClusterError, match=r"a cluster needs 1073741824 GiB of disk, but .* has [0-9.]+ GiB free"):
        disk.require(tmp_path, 2**60, "a cluster")


def test_a_folder_that_is_not_there_yet_lies_on_its_parents_disk(tmp_path: Path) -> None:
    assert disk.free(tmp_path / "not" / "yet") > 0


def test_logs_are_shown_of_daemons_that_ended_or_are_down(tmp_path: Path) -> None:
    layout = Layout(state=tmp_path / "state", cache=tmp_path / "cache")
    home = layout.machines / "control-plane"
    (home / "daemons").mkdir(parents=True)
    layout.logs.mkdir()
    for name in ("etcd", "kube-apiserver", "registry"):
        (home / "daemons" / f"{name}.json").write_text("{}")
        (layout.logs / f"control-plane-{name}.log").write_text(f"{name}: no space left\n")
    running = {"etcd": {"pid": 7, "starts": 3}, "registry": {"pid": 9, "starts": 1}}
    (home / "running.json").write_text(json.dumps(running))
    shown = "\n".join(status.log_ends(layout))
    assert "etcd: no space left" in shown
    assert "kube-apiserver: no space left" in shown
    assert "registry" not in shown
