"""Which tiers there are for which options, and whose blocks they take for their own."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.execution.attention.reference import ReferenceBackend
from plimsoll_runtime.execution.kv_cache import KvCache
from plimsoll_runtime.execution.tiers import open as opening
from plimsoll_runtime.execution.tiers.fingerprint import fingerprint
from plimsoll_runtime.execution.tiers.open import LEAST_STAGING, Tiers, check_options, open_tiers
from plimsoll_runtime.models.spec import AttentionShape
from plimsoll_runtime.weights.files import ModelFiles

CPU, GPU = torch.device("cpu"), torch.device("cuda")
SHAPE = AttentionShape(2, 1, 16, 1.0)


def config(**options: Any) -> EngineConfig:
    return EngineConfig(model="m", **options)


@pytest.fixture
def files(tmp_path: Path) -> ModelFiles:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"weights")
    return ModelFiles("m", tmp_path, "safetensors", {"hidden_size": 8}, (weights,))


def cache(dtype: torch.dtype = torch.float32, block_size: int = 16, num_blocks: int = 400) -> KvCache:
    return KvCache([SHAPE], num_blocks, block_size, dtype, CPU)


def opened(files: ModelFiles, root: Path, size: str = "1MiB") -> Tiers | None:
    return open_tiers(config(kv_disk=str(root), kv_disk_size=size), files, cache(), ReferenceBackend)


@pytest.mark.parametrize(
    ("options", "device", "told"),
    [
        ({"kv_host_memory": "1GiB"}, CPU, "on a CPU the KV cache lies in host memory already"),
        ({"kv_host_memory": "1GiB", "prefix_caching": False}, GPU, "--no-prefix-caching forbids"),
        ({"kv_disk": "d", "kv_disk_size": "1GiB", "prefix_caching": False}, CPU, "--kv-disk keeps cached prefixes"),
        ({"kv_disk": "d"}, CPU, "go together"),
        ({"kv_disk_size": "1GiB"}, CPU, "go together"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], device: torch.device, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        check_options(config(**options), device)


def test_options_that_make_sense_are_taken() -> None:
    check_options(config(), CPU)
    check_options(config(prefix_caching=False), CPU)
    check_options(config(kv_host_memory="1GiB", kv_disk="d", kv_disk_size="1GiB"), GPU)


def test_without_options_there_are_no_tiers(files: ModelFiles) -> None:
    assert open_tiers(config(), files, cache(), ReferenceBackend) is None


def test_a_disk_has_slots_before_it_and_as_many_blocks_as_its_size(files: ModelFiles, tmp_path: Path) -> None:
    tiers = opened(files, tmp_path / "kv")
    assert tiers is not None
    assert tiers.host.slots == tiers.index.slots_total == 400 // 8
    assert tiers.index.disk_total == 2**20 // cache().block_bytes
    assert opened(files, tmp_path / "other") is not None
    few = open_tiers(config(kv_disk=str(tmp_path), kv_disk_size="1MiB"), files, cache(num_blocks=20), ReferenceBackend)
    assert few is not None
    assert few.host.slots == LEAST_STAGING


def test_a_tilde_is_the_home_folder(files: ModelFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert opened(files, Path("~/kv")) is not None
    assert list((tmp_path / "kv").iterdir())


def test_a_size_below_a_block_is_refused(files: ModelFiles, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="less than a block of 2048 bytes"):
        opened(files, tmp_path / "kv", size="2047")


def test_a_path_that_is_a_file_is_refused(files: ModelFiles, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a folder"):
        opened(files, files.weights[0])
    with pytest.raises(UsageError, match="is not a folder"):
        opened(files, files.weights[0] / "below")


def test_a_disk_that_cannot_be_written_to_is_gone_without(
    files: ModelFiles, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(root: Path, fingerprint: bytes) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(opening, "BlockFolder", refuse)
    assert opened(files, Path("/kv")) is None
    (warning,) = caplog.records
    assert "goes without a disk: --kv-disk /kv cannot be used" in warning.getMessage()
    assert "Read-only" in warning.getMessage()


def test_a_fingerprint_changes_with_all_that_a_block_depends_on(files: ModelFiles, tmp_path: Path) -> None:
    prints = [fingerprint(files, cache(), "cpu", fused=True)]
    assert fingerprint(files, cache(), "cpu", fused=True) == prints[0]
    prints.append(fingerprint(replace(files, config={"hidden_size": 9}), cache(), "cpu", fused=True))
    prints.append(fingerprint(files, cache(torch.bfloat16), "cpu", fused=True))
    prints.append(fingerprint(files, cache(block_size=32), "cpu", fused=True))
    prints.append(fingerprint(files, cache(), "torch", fused=True))
    prints.append(fingerprint(files, cache(), "cpu", fused=False))
    files.weights[0].write_bytes(b"WEIGHTS")
    os.utime(files.weights[0], ns=(1, 1))
    prints.append(fingerprint(files, cache(), "cpu", fused=True))
    os.utime(files.weights[0], ns=(2, 2))
    prints.append(fingerprint(files, cache(), "cpu", fused=True))
    assert len(set(prints)) == len(prints) == 8
    assert {len(one) for one in prints} == {32}
