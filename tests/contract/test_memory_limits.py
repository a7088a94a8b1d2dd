"""Gateway and runtime each read their container's memory limit without shared code, and find the same.

This is the hard limit. The runtime also plans by `memory.high`, at which the kernel slows a process down.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plimsoll_gateway.admission.limits import memory_limit
from plimsoll_runtime.execution.memory.system import cgroup_limit

MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
PATHS = ["/", "/a", "/a/b", "/outside/a", "/../../etc", ""]
FOLDERS = [".", "a", "a/b", "memory", "memory/a", "memory/a/b"]
LIMITS = st.one_of(st.integers(1, MACHINE - 1).map(str), st.sampled_from(["max", "", "-1", "9223372036854771712"]))
LINES = st.lists(
    st.builds("{}:{}:{}".format, st.integers(0, 9), st.sampled_from(["", "memory", "cpu,memory", "cpu"]),
              st.sampled_from(PATHS)),
    max_size=3,
)  # fmt: skip
FILES = st.dictionaries(
    st.tuples(st.sampled_from(FOLDERS), st.sampled_from(["memory.max", "memory.limit_in_bytes"])), LIMITS, max_size=6
)


@given(lines=LINES, files=FILES)
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_both_find_the_same_limit(
    lines: list[str], files: dict[tuple[str, str], str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("cgroup")
    own = write(root, lines, files)
    found = cgroup_limit(root / "tree", own)
    assert memory_limit(root / "tree", own) == min(MACHINE, MACHINE if found is None else found)


@pytest.mark.parametrize(
    ("line", "file"),
    [("0::/a/b", ("a", "memory.max")), ("4:memory:/a/b", ("memory/a", "memory.limit_in_bytes")),
     ("0::/elsewhere", (".", "memory.max")), ("4:cpu,memory:/x", ("memory", "memory.limit_in_bytes"))],
)  # fmt: skip
def test_both_see_the_usual_ones(tmp_path: Path, line: str, file: tuple[str, str]) -> None:
    own = write(tmp_path, [line], {file: "4096"})
    assert memory_limit(tmp_path / "tree", own) == cgroup_limit(tmp_path / "tree", own) == 4096


def write(root: Path, lines: list[str], files: dict[tuple[str, str], str]) -> Path:
    """Write a tree of cgroups and the process's own cgroup file."""
    for (folder, name), text in files.items():
        (root / "tree" / folder).mkdir(parents=True, exist_ok=True)
        (root / "tree" / folder / name).write_text(text + "\n")
    own = root / "own"
    own.write_text("".join(line + "\n" for line in lines))
    return own
