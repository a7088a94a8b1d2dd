"""Tuning runs every candidate over the cache without changing it, and passes its results to the launches."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from plimsoll_kernels.paged_attention import tune
from plimsoll_kernels.paged_attention.batch import PagedBatch
from plimsoll_kernels.paged_attention.configs import DEFAULTS
from plimsoll_kernels.paged_attention.op import paged_attention
from plimsoll_kernels.paged_attention.tune import TunedHeads, tune_paged_attention
from plimsoll_kernels.tuning.store import TuningStore

LAUNCHED = {"decode": ["decode"], "prefill": ["prefill"], "tile": ["decode", "prefill"]}
"""The kernels that use a file."""
HEADS = TunedHeads(heads=4, scale=0.25, window=None, softcap=None)


@pytest.fixture(autouse=True)
def _little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "CONTEXT", 32)
    monkeypatch.setattr(tune, "CHUNK", 8)


def caches(num_blocks: int, device: str = "cpu") -> Any:
    return torch.randn(2, 2, num_blocks, 8, 16, device=device)


class Clock:
    """Runs the work once, and returns less time at each call: the last candidate wins."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, work: Callable[[], object]) -> float:
        work()
        self.calls += 1
        return 100.0 - self.calls


def test_every_candidate_computes_the_same(triton_device: str, tmp_path: Path) -> None:
    from plimsoll_kernels.paged_attention.decode import kernel as decode
    from plimsoll_kernels.paged_attention.prefill import kernel as prefill

    both = caches(20, triton_device)
    before, clock, store = both.clone(), Clock(), TuningStore(tmp_path)
    found = tune_paged_attention(both[0], both[1], HEADS, store, clock)
    tried = [k.candidates(16, 2, both.element_size()) for k in (decode, prefill)]
    assert clock.calls == sum(map(len, tried))
    assert (found.decode, found.prefill) == (tried[0][-1], tried[1][-1])
    assert torch.equal(both, before)
    assert tune_paged_attention(both[0], both[1], HEADS, store, clock) == found
    assert clock.calls == sum(map(len, tried)), "a stored configuration is measured again"

    query = torch.randn(6, 4, 16, device=triton_device)
    batch = PagedBatch.of([5, 1], [20, 30], [[3, 1, 2], [5, 6, 7, 8]], triton_device)
    options: dict[str, Any] = {"scale": 0.25}
    expected = paged_attention(query, both[0], both[1], batch, implementation="reference", **options)
    for config in (found, DEFAULTS):
        actual = paged_attention(query, both[0], both[1], batch, configs=config, implementation="triton", **options)
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def test_a_small_cache_is_not_tuned(tmp_path: Path) -> None:
    both = caches(16)
    assert tune_paged_attention(both[0], both[1], HEADS, TuningStore(tmp_path), Clock()) == DEFAULTS
    assert not list(tmp_path.iterdir())


@pytest.mark.matrix(2)
@pytest.mark.parametrize("changed", ["decode", "prefill", "tile"])
def test_other_code_is_measured_anew(
    changed: str, triton_device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change of shared code affects both kernels."""
    kernels = {part: import_module(f"plimsoll_kernels.paged_attention.{part}.kernel") for part in LAUNCHED}
    both, store = caches(20, triton_device), TuningStore(tmp_path / "store")
    tune_paged_attention(both[0], both[1], HEADS, store, Clock())
    other = tmp_path / "kernel.py"
    other.write_text(Path(str(kernels[changed].__file__)).read_text() + "# other\n")
    monkeypatch.setattr(kernels[changed], "__file__", str(other))
    clock = Clock()
    tune_paged_attention(both[0], both[1], HEADS, store, clock)
    assert clock.calls == sum(len(kernels[name].candidates(16, 2, 4)) for name in LAUNCHED[changed])
