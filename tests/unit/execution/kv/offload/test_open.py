"""The tiers of given options, and the blocks on disk that they accept."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from plimsoll_kernels.cpu.library import VARIABLE, runnable
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.errors import MemoryLimitError, UsageError
from plimsoll_runtime.execution.attention.backends.reference import ReferenceBackend
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.execution.kv.offload import open as opening
from plimsoll_runtime.execution.kv.offload.block_files import BlockFolder
from plimsoll_runtime.execution.kv.offload.open import LEAST, Tiers, check_tier_options, fingerprint, open_tiers
from plimsoll_runtime.models.spec.attention import AttentionShape
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
        ({"kv_host_memory": "1GiB"}, CPU, "on a CPU the KV cache is in host memory already"),
        ({"kv_host_memory": "1GiB", "prefix_caching": False}, GPU, "--no-prefix-caching is set"),
        ({"kv_disk": "d", "kv_disk_size": "1GiB", "prefix_caching": False}, CPU, "--kv-disk needs prefix caching"),
        ({"kv_disk": "d"}, CPU, "need each other"),
        ({"kv_disk_size": "1GiB"}, CPU, "need each other"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], device: torch.device, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        check_tier_options(config(**options), device)


def test_options_that_make_sense_are_taken() -> None:
    check_tier_options(config(), CPU)
    check_tier_options(config(prefix_caching=False), CPU)
    check_tier_options(config(kv_host_memory="1GiB", kv_disk="d", kv_disk_size="1GiB"), GPU)


def test_without_options_there_are_no_tiers(files: ModelFiles) -> None:
    assert open_tiers(config(), files, cache(), ReferenceBackend) is None


def test_a_disk_has_frames_before_it_and_as_many_blocks_as_its_size(files: ModelFiles, tmp_path: Path) -> None:
    tiers = opened(files, tmp_path / "kv")
    assert tiers is not None
    assert tiers.host.frames == tiers.index.frames_total == 400 // 8
    assert tiers.index.disk_total == 2**20 // 4096, "a block of 2048 bytes and its header take a page"
    assert opened(files, tmp_path / "other") is not None
    few = open_tiers(config(kv_disk=str(tmp_path), kv_disk_size="1MiB"), files, cache(num_blocks=20), ReferenceBackend)
    assert few is not None
    assert few.host.frames == LEAST


def test_a_gpus_frames_are_refused_where_the_host_has_no_room(
    files: ModelFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "free_memory", lambda device: 50 * 2048)
    on_a_gpu = cache()
    on_a_gpu.device = GPU
    disk = {"kv_disk": str(tmp_path), "kv_disk_size": "1MiB"}
    with pytest.raises(MemoryLimitError, match=r"needs 0\.00 GiB of host memory for 50 frames between GPU and disk"):
        open_tiers(config(**disk), files, on_a_gpu, ReferenceBackend)
    with pytest.raises(
        MemoryLimitError, match=r"--kv-host-memory 1GiB is 1\.00 GiB; it must be .* at most the 0\.00 GiB"
    ):
        open_tiers(config(kv_host_memory="1GiB", **disk), files, on_a_gpu, ReferenceBackend)
    assert opened(files, tmp_path) is not None
    assert len(list(tmp_path.glob("plimsoll-kv-*"))) == 1, "the folder was given back"


def test_a_tilde_is_the_home_folder(files: ModelFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert opened(files, Path("~/kv")) is not None
    assert list((tmp_path / "kv").iterdir())


class Usage(NamedTuple):
    """The result of `shutil.disk_usage`."""

    total: int
    used: int
    free: int


def test_a_size_that_can_never_be_is_refused_with_the_numbers(
    files: ModelFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage(2**30, 0, 2**30))
    with pytest.raises(UsageError, match=r"4095 is 4095 bytes; it must be at least a block's 4096 and at most the 107"):
        opened(files, tmp_path, size="4095")
    with pytest.raises(
        UsageError, match=r"2GiB is 2147483648 bytes; .* at most the 1073741824 \(1\.00 GiB\) of the whole disk"
    ):
        opened(files, tmp_path, size="2GiB")
    assert opened(files, tmp_path) is not None
    assert len(list(tmp_path.glob("plimsoll-kv-*"))) == 1, "the folder was given back"


def test_a_disk_that_others_have_filled_gets_what_is_left_and_what_is_ours_counts_as_free(
    files: ModelFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    left = BlockFolder(tmp_path, fingerprint(files, cache(), "reference", fused=False))
    for i in range(3):
        left.write(bytes([i]) * 32, memoryview(bytes(2048)))
    left.close()
    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage(2**30, 0, 2 * 4096 + 1))
    tiers = opened(files, tmp_path, size="1MiB")
    assert tiers is not None
    assert (tiers.index.disk_total, tiers.index.disk_used) == (5, 3)
    (warning,) = caplog.records
    assert "--kv-disk-size 1MiB exceeds the 0.00 GiB that are free" in warning.getMessage()
    whole = opened(files, tmp_path, size="100%")
    assert whole is not None
    assert whole.index.disk_total == 2, "another engine has those three"


def test_a_disk_without_room_for_a_block_is_gone_without(
    files: ModelFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage(2**30, 2**30, 0))
    for size in ("1MiB", "50%"):
        caplog.clear()
        assert opened(files, tmp_path, size=size) is None
        assert "has no space for a block" in caplog.records[-1].getMessage()

    def fail(path: Path) -> Usage:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("shutil.disk_usage", fail)
    assert opened(files, tmp_path) is None
    assert ": [Errno 5] Input/output error" in caplog.records[-1].getMessage()
    monkeypatch.undo()
    assert opened(files, tmp_path) is not None
    assert len(list(tmp_path.glob("plimsoll-kv-*"))) == 1, "the folder was given back"


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
    assert "has no disk tier: cannot use --kv-disk /kv" in warning.getMessage()
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


def test_a_fingerprint_tells_instructions_apart(files: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    prints = set()
    for name in runnable():
        monkeypatch.setenv(VARIABLE, name)
        prints.add(fingerprint(files, cache(torch.bfloat16), "cpu", fused=True))
    assert len(prints) == len(runnable())
