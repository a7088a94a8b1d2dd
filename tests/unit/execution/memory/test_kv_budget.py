"""Memory is divided exactly; a cache that does not fit is refused with the numbers."""

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_runtime.engine.kv.cache_groups import ONE_FULL
from plimsoll_runtime.errors import MemoryLimitError, UsageError
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.execution.kv.layout import KvLayout
from plimsoll_runtime.execution.kv.offload.open import staging_bytes
from plimsoll_runtime.execution.memory.kv_budget import FreeMemory, KvBudget, check_weights_fit, plan_kv_cache
from plimsoll_runtime.models.spec.attention import AttentionShape
from plimsoll_runtime.utils.sizes import parse_size

GIB = 2**30


def of_one_group(block_bytes: int) -> KvLayout:
    return KvLayout(((0,),), ONE_FULL, 16, block_bytes)


def plan(**changes: Any) -> KvBudget:
    options: dict[str, Any] = {
        "room": FreeMemory(weights=GIB, free=5 * GIB, workspace=GIB),
        "kv_memory": None,
        "layout": of_one_group(2**20),
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
        ("2Gi", 2 * GIB),
        ("1e9", 10**9),
        ("40%", 400),
        ("100%", 1000),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text, 1000) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "0", "0%", "101%", "2XB", "1e-9", "0.5", "nan", "2 GiB extra"])
def test_impossible_sizes_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match=r"memory"):
        parse_size(text, 1000)


@given(st.integers(64, 4096), st.integers(1, 2**22))
def test_kv_memory_is_exact_to_a_block(mebibytes: int, block_bytes: int) -> None:
    budget = plan(kv_memory=f"{mebibytes}MiB", layout=of_one_group(block_bytes), model_limit=16, max_model_len=None)
    assert budget.kv_bytes == budget.num_blocks * block_bytes
    assert budget.kv_bytes <= mebibytes * 2**20 < budget.kv_bytes + block_bytes


def test_the_default_takes_its_share_and_no_more_than_can_be_used() -> None:
    assert plan().num_blocks == 2048
    assert plan(model_limit=64, max_sequences=2).num_blocks == 2 * 4 + 1


def test_the_longest_sequence_shrinks_to_the_cache_unless_it_was_asked_for() -> None:
    assert plan().max_model_len == 2047 * 16
    assert plan(room=FreeMemory(GIB, 64 * GIB, 0)).max_model_len == 32768
    with pytest.raises(MemoryLimitError, match=r"may have 40000, for which it needs 2\.44 GiB"):
        plan(model_limit=65536, max_model_len=40000)
    with pytest.raises(UsageError, match="limit of 32768"):
        plan(max_model_len=32769)


def test_more_than_is_free_is_refused() -> None:
    numbers = "the weights take 1.00 GiB; 5.00 GiB are free next to them, of which a step takes 1.00 GiB"
    with pytest.raises(MemoryLimitError, match=f"needs 5.00 GiB, but 4.00 GiB are usable: {numbers}; lower --kv-m"):
        plan(kv_memory="5GiB")
    with pytest.raises(MemoryLimitError, match=r"needs 3\.00 MiB \(3 blocks of 1048576 bytes\)"):
        plan(kv_memory="2MiB")
    assert plan(kv_memory="100%").kv_bytes == 4 * GIB


def test_a_step_that_does_not_fit_is_refused() -> None:
    with pytest.raises(MemoryLimitError, match=r"5\.00 GiB are free next to them, of which a step takes 6\.00 GiB"):
        plan(room=FreeMemory(weights=GIB, free=5 * GIB, workspace=6 * GIB))


def test_weights_that_do_not_fit_are_refused_before_they_are_loaded() -> None:
    check_weights_fit(GIB, GIB)
    with pytest.raises(MemoryLimitError, match=r"the weights need 3\.00 GiB, but 2\.00 GiB are free; raise the memory"):
        check_weights_fit(3 * GIB, 2 * GIB)


@pytest.mark.parametrize("asked", ["1MiB", "3000001", "7 MB"])
def test_the_cache_is_as_large_as_was_asked_to_a_block(asked: str) -> None:
    """The padding block is included, so one block less is usable."""
    shapes = [AttentionShape(2, 2, 48, 1.0), AttentionShape(2, 1, 256, 1.0)]
    block_bytes = 16 * 2 * (2 * 48 + 256) * 2
    budget = plan(kv_memory=asked, layout=of_one_group(block_bytes), model_limit=64)
    cache = KvCache(shapes, budget.num_blocks, 16, torch.bfloat16, torch.device("cpu"))
    assert cache.nbytes == budget.kv_bytes == parse_size(asked, 0) // block_bytes * block_bytes


def an_eighth(num_blocks: int) -> int:
    """Return the staging bytes of blocks of a MiB."""
    return max(16, num_blocks // 8) * 2**20


def test_what_lies_between_cache_and_disk_is_in_the_budget() -> None:
    """A share includes the frames, an amount is the cache's alone."""
    whole = plan(kv_memory="100%", staging=an_eighth)
    assert whole.kv_bytes + an_eighth(whole.num_blocks) <= 4 * GIB
    assert (whole.num_blocks + 1) * 2**20 + an_eighth(whole.num_blocks + 1) > 4 * GIB
    assert plan(staging=an_eighth).num_blocks == 1821, "with 227 frames they are 2 GiB"
    assert plan(model_limit=64, max_sequences=2, staging=an_eighth).num_blocks == 9
    assert plan(kv_memory="3GiB", staging=an_eighth).kv_bytes == 3 * GIB


def test_what_lies_between_cache_and_disk_is_refused_where_it_does_not_fit() -> None:
    told = r"needs 3\.75 GiB and 480\.00 MiB of frames between it and --kv-disk, but 4\.00 GiB are usable"
    with pytest.raises(MemoryLimitError, match=told):
        plan(kv_memory="3840MiB", staging=an_eighth)
    assert plan(kv_memory="3840MiB").num_blocks == 3840
    with pytest.raises(MemoryLimitError, match=r"\(3 blocks of 1048576 bytes\) and 16\.00 MiB of frames between"):
        plan(room=FreeMemory(GIB, 16 * 2**20, 0), kv_memory="100%", staging=an_eighth)


@given(st.integers(1, 2**33), st.integers(1, 2**23))
def test_a_share_is_used_up_to_less_than_a_block_and_a_frame(usable: int, block_bytes: int) -> None:
    staging = partial(staging_bytes, block_bytes=block_bytes)
    try:
        budget = plan(
            room=FreeMemory(0, usable, 0),
            kv_memory="100%",
            layout=of_one_group(block_bytes),
            model_limit=16,
            staging=staging,
        )
    except MemoryLimitError:
        assert 2 * block_bytes + staging(2) > usable
        return
    assert budget.kv_bytes + staging(budget.num_blocks) <= usable
    more = budget.num_blocks + 1
    assert more * block_bytes + staging(more) > usable
