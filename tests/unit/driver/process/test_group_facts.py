"""The instruction sets that a member offers to its group, and the images that its ranks may wake from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plimsoll_kernels.cpu.library import VARIABLE, runnable
from plimsoll_runtime.driver.process.group_facts import identity_of
from plimsoll_runtime.driver.process.rank_images import RankImages
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.group_options import GroupOptions
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.parallel.membership import Identity
from plimsoll_runtime.weights.files import ModelFiles

GROUP = GroupOptions(size=2, index=1, address="127.0.0.1:29500")


def config(**options: Any) -> EngineConfig:
    return EngineConfig(**{"model": "tiny", "tensor_parallel": 2, "group": GROUP, "device": "cpu", **options})


def identity(**options: Any) -> Identity:
    files = ModelFiles("tiny", Path(), "safetensors", {"dtype": "bfloat16"}, ())
    return identity_of(config(**options), files)


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if not runnable():
        pytest.skip("no CPU kernels of ours run here")


def test_a_member_offers_the_sets_up_to_its_own_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    able = runnable()
    best = "avx512" if "avx512" in able else "avx2"
    assert identity(dtype="float32").instructions == able[: able.index(best) + 1]
    for count, name in enumerate(able, 1):
        monkeypatch.setenv(VARIABLE, name)
        assert identity().instructions == able[:count]
    assert identity().facts == identity(dtype="auto").facts


def test_the_set_is_no_fact_that_must_be_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    own = identity()
    monkeypatch.setenv(VARIABLE, "avx2")
    assert identity().facts == own.facts
    assert identity().group == own.group


@pytest.mark.parametrize("options", [{"group_backend": "gloo"}, {"attention_backend": "torch"}, {"dtype": "float16"}])
def test_a_member_without_cpu_kernels_offers_none(options: dict[str, str]) -> None:
    assert identity(**options).instructions == ()


def test_a_variable_that_cannot_be_used_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "neon")
    with pytest.raises(UsageError, match="PLIMSOLL_CPU_ISA=neon is unknown"):
        identity()


def test_images_for_another_set_are_discarded() -> None:
    images = RankImages(config())
    try:
        images.prepare("avx512")
        [first] = images.images
        images.prepare("avx512")
        assert images.images == [first]
        for instructions in ("avx2", "avx512", None):
            images.prepare(instructions)
            assert first.descriptor == -1
            [first] = images.images
    finally:
        images.close()
