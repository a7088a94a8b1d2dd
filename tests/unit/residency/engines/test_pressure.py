"""Memory pressure read from simulated kernel files."""

import asyncio
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import AsyncMock

import psutil
import pytest

from plimsoll_runtime.execution.memory.system import cgroup_limit
from plimsoll_runtime.residency.engines import processes as module
from plimsoll_runtime.residency.engines.pressure import Stalls, host_memory_left, judge, read_stalls
from plimsoll_runtime.residency.engines.processes import Processes
from plimsoll_runtime.residency.planner.view import Pressure

MIB, GIB = 2**20, 2**30


def psi(path: Path, some: object, full: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f"some avg10={some} avg60=99.00 avg300=99.00 total=1234\nfull avg10={full} avg60=99.00 avg300=99.00 total=12\n"
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cgroup"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own"
    path.write_text("0::/pod/container\n")
    return path


def test_the_cgroups_own_stalls_come_first(root: Path, own: Path, tmp_path: Path) -> None:
    machine = tmp_path / "machine"
    assert read_stalls(root, own, machine) is None
    psi(machine, 3.0, 2.0)
    assert read_stalls(root, own, machine) == Stalls(3.0, 2.0)
    psi(root / "memory.pressure", 30.5, 20)
    assert read_stalls(root, own, machine) == Stalls(30.5, 20.0)
    psi(root / "pod" / "container" / "memory.pressure", 0.12, 0.0)
    assert read_stalls(root, own, machine) == Stalls(0.12, 0.0)


def test_version_1_has_the_machines_stalls(root: Path, own: Path, tmp_path: Path) -> None:
    own.write_text("4:memory:/pod\n")
    psi(tmp_path / "machine", 7.0, 1.0)
    assert read_stalls(root, own, tmp_path / "machine") == Stalls(7.0, 1.0)
    own.unlink()
    assert read_stalls(root, own, tmp_path / "machine") == Stalls(7.0, 1.0)


@pytest.mark.parametrize("text", ["", "some avg10=1.00\n", "garbage", "some avg10=x\nfull avg10=1\n", "\n\n"])
def test_what_says_less_counts_for_nothing(root: Path, own: Path, tmp_path: Path, text: str) -> None:
    root.mkdir()
    (root / "memory.pressure").write_text(text)
    psi(tmp_path / "machine", 7.0, 1.0)
    assert read_stalls(root, own, tmp_path / "machine") == Stalls(7.0, 1.0)


def test_a_path_that_leads_elsewhere_is_not_followed(root: Path, own: Path, tmp_path: Path) -> None:
    own.write_text("0::/../../elsewhere\n")
    psi(tmp_path / "elsewhere" / "memory.pressure", 50.0, 50.0)
    assert read_stalls(root, own, tmp_path / "machine") is None


@pytest.mark.parametrize(
    ("limits", "usage", "folder"),
    [("memory.max", "memory.current", "."), ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory")],
)
def test_what_a_cgroup_leaves_counts_in_either_version(
    root: Path, own: Path, limits: str, usage: str, folder: str
) -> None:
    own.write_text("")
    free = host_memory_left(root, own)
    assert free == pytest.approx(psutil.virtual_memory().available, rel=0.2)
    (root / folder).mkdir(parents=True)
    (root / folder / limits).write_text("1000\n")
    (root / folder / usage).write_text("700\n")
    assert host_memory_left(root, own) == 300


@pytest.mark.parametrize(
    ("folder", "limit", "usage", "mapped"),
    [
        (".", "memory.max", "memory.current", "file_mapped"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_mapped_file"),
    ],
)
def test_the_pod_that_has_read_the_libraries_first_plans_with_as_much_as_the_others(
    root: Path, own: Path, monkeypatch: pytest.MonkeyPatch, folder: str, limit: str, usage: str, mapped: str
) -> None:
    """It also plans no memory that the kernel would not give: anonymous memory counts in both pods."""
    own.write_text("")
    total = "total_" if folder == "memory" else ""
    taken, libraries, image = 500 * MIB, 165 * MIB, 60 * MIB
    (root / folder).mkdir(parents=True)
    (root / folder / limit).write_text(f"{GIB}\n")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=64 * GIB))
    monkeypatch.setattr(module, "host_memory_left", partial(host_memory_left, root, own))
    monkeypatch.setattr(module, "cgroup_limit", partial(cgroup_limit, root, own))
    capacities = []
    for files in (0, libraries):
        (root / folder / usage).write_text(f"{taken + files}\n")
        (root / folder / "memory.stat").write_text(
            f"{total}active_file {files // 2}\n{total}inactive_file {files // 2}\n{mapped} {files + image}\n"
        )
        engines = Processes()
        monkeypatch.setattr(engines, "_accelerated", False)
        monkeypatch.setattr(engines, "_own", lambda: 400 * MIB)
        monkeypatch.setattr(engines._spare, "footprints", AsyncMock(return_value=(0, 0)))
        capacities.append(asyncio.run(engines.open(0.9, 256 * MIB)).capacity)
    assert capacities == [GIB - taken + 400 * MIB - 256 * MIB] * 2


@pytest.mark.parametrize(
    ("left", "stalls", "level"),
    [
        (8 * GIB, None, Pressure.NONE),
        (GIB, None, Pressure.NONE),
        (GIB // 2, None, Pressure.NONE),
        (GIB // 2 - 1, None, Pressure.SOME),
        (GIB // 4, None, Pressure.SOME),
        (GIB // 4 - 1, None, Pressure.FULL),
        (0, None, Pressure.FULL),
        (8 * GIB, Stalls(9.9, 4.9), Pressure.NONE),
        (8 * GIB, Stalls(10.0, 0.0), Pressure.SOME),
        (8 * GIB, Stalls(0.0, 5.0), Pressure.FULL),
        (GIB // 4 - 1, Stalls(0.0, 0.0), Pressure.FULL),
    ],
)
def test_levels(left: int, stalls: Stalls | None, level: Pressure) -> None:
    assert judge(left, 10 * GIB, 9 * GIB, stalls) is level


def test_a_line_at_the_very_top_leaves_a_margin_too() -> None:
    assert judge(GIB // 4 - 1, 10 * GIB, 10 * GIB, None) is Pressure.SOME
    assert judge(GIB // 4, 10 * GIB, 10 * GIB, None) is Pressure.NONE
