"""The gateway's memory limit is that of its container."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from plimsoll_gateway.admission.limits import memory_limit

MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    ("files", "own", "limit"),
    [
        ({}, "", MACHINE),
        ({"memory.max": "max"}, "0::/", MACHINE),
        ({"memory.max": "1000"}, "0::/", 1000),
        ({"a/memory.max": "3000", "a/b/memory.max": "max"}, "0::/a/b", 3000),
        ({"a/memory.max": "3000", "a/b/memory.max": "2000"}, "0::/a/b", 2000),
        ({"memory.max": "700"}, "0::/kubepods/pod1/outside", 700),
        ({"memory/memory.limit_in_bytes": "900"}, "4:memory:/x\n5:cpu,cpuacct:/y", 900),
        (
            {"memory/x/memory.limit_in_bytes": "800", "memory/y/memory.limit_in_bytes": "1"},
            "4:memory:/x\n5:cpu:/y",
            800,
        ),
        ({"memory/memory.limit_in_bytes": "9223372036854771712"}, "4:memory:/", MACHINE),
        ({"memory.max": "1"}, "0::/../../etc", 1),
    ],
)
def test_the_tightest_limit_counts(tmp_path: Path, files: dict[str, str], own: str, limit: int) -> None:
    for name, text in files.items():
        file = tmp_path / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    told = tmp_path / "own"
    told.write_text(own)
    assert memory_limit(tmp_path / "cgroup", told) == limit


def test_without_cgroups_it_is_the_machines(tmp_path: Path) -> None:
    assert memory_limit(tmp_path / "none", tmp_path / "none either") == MACHINE
