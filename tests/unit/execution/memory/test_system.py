"""A container's limit applies, in both versions of cgroups, at any level above the process."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from plimsoll_runtime.execution.memory.system import cgroup_left

V2, V1 = ("memory.max", "memory.current", ""), ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
UNLIMITED = 9223372036854771712


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """The contents of /proc/self/cgroup."""
    return tmp_path / "own"


def fill(folder: Path, names: tuple[str, str, str], limit: object, usage: int, **stat: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{usage}\n")
    (folder / "memory.stat").write_text("anon 5\n" + "".join(f"{name} {size}\n" for name, size in stat.items()))


@pytest.mark.parametrize(
    ("names", "folder", "stat", "left"),
    [
        (V2, ".", {"inactive_file": 100}, 400),
        (V2, ".", {"inactive_file": 100, "active_file": 300, "file_mapped": 50}, 650),
        (V2, ".", {"inactive_file": 10, "file_mapped": 50}, 300),
        (V1, "memory", {"total_inactive_file": 100}, 400),
        (V1, "memory", {"inactive_file": 7, "total_active_file": 100, "total_mapped_file": 30}, 370),
    ],
)
def test_files_pages_that_nobody_has_mapped_are_left(
    tmp_path: Path, own: Path, names: tuple[str, str, str], folder: str, stat: Mapping[str, int], left: int
) -> None:
    fill(tmp_path / "sys" / folder, names, 1000, 700, **stat)
    assert cgroup_left(tmp_path / "sys", own) == left


@pytest.mark.parametrize(
    ("names", "folder", "stat", "left"),
    [
        (V2, ".", {"inactive_file": 100, "active_file": 300, "file_mapped": 350}, 700),
        (V2, ".", {"inactive_file": 100, "file_mapped": 600, "shmem": 600}, 400),
        (V2, ".", {"file_mapped": 600, "unevictable": 50, "slab_reclaimable": 40}, 300),
        (V1, "memory", {"total_inactive_file": 100, "total_active_file": 300, "total_mapped_file": 350}, 700),
        (V1, "memory", {"inactive_file": 7, "total_active_file": 100, "total_mapped_file": 600}, 400),
    ],
)
def test_files_pages_that_are_mapped_are_left_to_who_counts_on_the_kernel(
    tmp_path: Path, own: Path, names: tuple[str, str, str], folder: str, stat: Mapping[str, int], left: int
) -> None:
    """Shared memory does not count: it is mapped, too, but not page cache."""
    fill(tmp_path / "sys" / folder, names, 1000, 700, **stat)
    assert cgroup_left(tmp_path / "sys", own, mapped=True) == left


def test_no_limit(tmp_path: Path, own: Path) -> None:
    assert cgroup_left(tmp_path / "sys", own) is None
    fill(tmp_path / "sys", V2, "max", 700)
    assert cgroup_left(tmp_path / "sys", own) is None


def test_more_used_than_allowed(tmp_path: Path, own: Path) -> None:
    fill(tmp_path / "sys", V2, 500, 700)
    assert cgroup_left(tmp_path / "sys", own) == 0


def test_the_level_at_which_the_kernel_slows_a_process_down_counts_too(tmp_path: Path, own: Path) -> None:
    fill(tmp_path / "sys", V2, 1000, 100)
    (tmp_path / "sys" / "memory.high").write_text("600\n")
    assert cgroup_left(tmp_path / "sys", own) == 500


def test_the_tightest_limit_on_the_way_up_counts(tmp_path: Path, own: Path) -> None:
    own.write_text("0::/pod/container\n")
    fill(tmp_path / "sys" / "pod", V2, 1000, 900)
    fill(tmp_path / "sys" / "pod" / "container", V2, 800, 300)
    fill(tmp_path / "sys" / "other", V2, 10, 10)
    assert cgroup_left(tmp_path / "sys", own) == 100


def test_the_same_in_version_1(tmp_path: Path, own: Path) -> None:
    own.write_text("12:cpu,cpuacct:/pod\n4:memory:/pod/container\n0::/\n")
    root = tmp_path / "sys" / "memory"
    fill(root, V1, UNLIMITED, 5000)
    fill(root / "pod", V1, UNLIMITED, 900)
    fill(root / "pod" / "container", V1, 800, 300)
    assert cgroup_left(tmp_path / "sys", own) == 500


def test_a_path_of_the_hosts_means_the_root(tmp_path: Path, own: Path) -> None:
    own.write_text("4:memory:/docker/0123\n")
    fill(tmp_path / "sys" / "memory", V1, 800, 300)
    assert cgroup_left(tmp_path / "sys", own) == 500
    own.write_text("garbage\n0::/../../elsewhere\n")
    assert cgroup_left(tmp_path / "sys", own) == 500
