"""Control groups: detecting hierarchies, and creating and removing groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster import cgroups
from cluster.cgroups import Hierarchies
from cluster.errors import ClusterError

PROC_CGROUPS = """\
#subsys_name	hierarchy	num_cgroups	enabled
cpuset	3	1	1
memory	4	21	1
net_cls	0	1	1
rdma	0	1	0
"""
MOUNTINFO = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:5 - cgroup cgroup rw,cpu,cpuacct
32 30 0:28 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd
33 30 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
"""


@pytest.fixture
def hierarchies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hierarchies:
    """Two folders instead of the kernel's hierarchies; `cpuset` requires initial values in a new group."""
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    for name in ("cpuset", "memory"):
        (tmp_path / name).mkdir()
    (tmp_path / "cpuset" / "cpuset.cpus").write_text("0-1\n")
    (tmp_path / "cpuset" / "cpuset.mems").write_text("0\n")
    return Hierarchies(found=(tmp_path / "cpuset",), added=(tmp_path / "memory",))


def test_controllers_that_are_off_are_not_counted() -> None:
    assert cgroups.group_counts(PROC_CGROUPS) == {"cpuset": 1, "memory": 21, "net_cls": 1}


def test_hierarchies_are_known_by_mount_point_and_options() -> None:
    found = cgroups.mounted_hierarchies(MOUNTINFO)
    assert list(found) == [Path("/sys/fs/cgroup/cpu,cpuacct"), Path("/sys/fs/cgroup/systemd")]
    assert {"cpu", "cpuacct"} <= found[Path("/sys/fs/cgroup/cpu,cpuacct")]


def test_a_group_is_made_at_every_level_of_every_hierarchy(hierarchies: Hierarchies, tmp_path: Path) -> None:
    cgroups.create(hierarchies, Path("ours/n1"))
    cgroups.create(hierarchies, Path("ours/n1"))
    assert (tmp_path / "memory" / "ours" / "n1").is_dir()
    assert list((tmp_path / "memory").rglob("cpuset.*")) == []


def test_a_new_group_may_use_the_processors_of_the_one_above(
    hierarchies: Hierarchies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    real = Path.mkdir

    def mkdir(self: Path, exist_ok: bool = False) -> None:
        """Create the controller's files in a new group, empty, like the kernel."""
        real(self, exist_ok=exist_ok)
        made.append(self)
        if "cpuset" in self.parts[len(tmp_path.parts) :]:
            (self / "cpuset.cpus").touch()
            (self / "cpuset.mems").touch()

    monkeypatch.setattr(Path, "mkdir", mkdir)
    cgroups.create(hierarchies, Path("ours/n1"))
    assert (tmp_path / "cpuset" / "ours" / "n1" / "cpuset.cpus").read_text() == "0-1\n"
    assert (tmp_path / "cpuset" / "ours" / "n1" / "cpuset.mems").read_text() == "0\n"


def test_removing_takes_everything_below_and_nothing_beside(hierarchies: Hierarchies, tmp_path: Path) -> None:
    cgroups.create(hierarchies, Path("other"))
    cgroups.create(hierarchies, Path("ours/n1"))
    (tmp_path / "memory" / "ours" / "n1" / "pods" / "one").mkdir(parents=True)
    cgroups.remove(hierarchies, Path("ours"))
    cgroups.remove(hierarchies, Path("ours"))
    assert [path.name for path in (tmp_path / "memory").iterdir()] == ["other"]


def test_a_group_that_stays_in_use_is_an_error(
    hierarchies: Hierarchies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "REMOVE_SECONDS", 0.0)
    cgroups.create(hierarchies, Path("ours"))
    (tmp_path / "memory" / "ours" / "in-use").touch()
    with pytest.raises(ClusterError, match="cannot remove"):
        cgroups.remove(hierarchies, Path("ours"))
