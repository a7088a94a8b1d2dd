"""Memory is divided exactly, and what cannot fit is refused with the numbers."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_runtime.errors import MemoryLimitError, UsageError
from plimsoll_runtime.execution.memory import KvBudget, cgroup_left, plan_kv_cache
from plimsoll_runtime.sizes import parse_size

GIB = 2**30


def plan(**changes: Any) -> KvBudget:
    options: dict[str, Any] = {
        "free": 4 * GIB,
        "kv_memory": None,
        "block_bytes": 2**20,
        "block_size": 16,
        "max_model_len": None,
        "model_limit": 32768,
        "max_sequences": 128,
        "default_share": 0.5,
    }
    return plan_kv_cache(**(options | changes))


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2GiB", 2 * GIB),
        ("1.5 GB", 1_500_000_000),
        ("512mib", 512 * 2**20),
        ("1048576", 2**20),
        ("40%", 400),
        ("100%", 1000),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text, 1000) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "0", "0%", "101%", "2XB", "1e9", "nan", "2 GiB extra"])
def test_impossible_sizes_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match=r"memory"):
        parse_size(text, 1000)


@given(st.integers(64, 4096), st.integers(1, 2**22))
def test_kv_memory_is_exact_to_a_block(mebibytes: int, block_bytes: int) -> None:
    budget = plan(kv_memory=f"{mebibytes}MiB", block_bytes=block_bytes, model_limit=16, max_model_len=None)
    assert budget.kv_bytes == budget.num_blocks * block_bytes
    assert budget.kv_bytes <= mebibytes * 2**20 < budget.kv_bytes + block_bytes


def test_the_default_takes_its_share_and_no_more_than_can_be_used() -> None:
    assert plan().num_blocks == 2048
    assert plan(model_limit=64, max_sequences=2).num_blocks == 2 * 4 + 1


def test_the_longest_sequence_shrinks_to_the_cache_unless_it_was_asked_for() -> None:
    assert plan().max_model_len == 2047 * 16
    assert plan(free=64 * GIB).max_model_len == 32768
    with pytest.raises(MemoryLimitError, match=r"may have 40000: it needs 2\.44 GiB"):
        plan(model_limit=65536, max_model_len=40000)
    with pytest.raises(UsageError, match="limit of 32768"):
        plan(max_model_len=32769)


def test_more_than_is_free_is_refused() -> None:
    with pytest.raises(MemoryLimitError, match=r"asks for 5\.00 GiB, but 4\.00 GiB are free"):
        plan(kv_memory="5GiB")


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_cgroup_limit_counts_and_file_pages_do_not(tmp_path: Path, version: str) -> None:
    folder = tmp_path if version == "v2" else tmp_path / "memory"
    folder.mkdir(exist_ok=True)
    names = ("memory.max", "memory.current") if version == "v2" else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    key = "inactive_file" if version == "v2" else "total_inactive_file"
    for name, text in zip((*names, "memory.stat"), ("1000\n", "700\n", f"anon 5\n{key} 100\n"), strict=True):
        (folder / name).write_text(text)
    assert cgroup_left(tmp_path) == 400


def test_no_cgroup_limit(tmp_path: Path) -> None:
    assert cgroup_left(tmp_path) is None
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("700\n")
    assert cgroup_left(tmp_path) is None
