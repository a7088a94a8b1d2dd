"""GPUs of a group's ranks: options and environments that cannot work are refused before anything is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.distributed as dist

from plimsoll_runtime.driver.build.engine import build_engine
from plimsoll_runtime.driver.build.group_devices import OF_CUDA, OF_ROCM, Place, check_machine, check_visible, place_of
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.group_options import GroupOptions
from plimsoll_runtime.errors import DeviceLostError, UsageError

CUDA, CPU = torch.device("cuda"), torch.device("cpu")
NOTHING: Mapping[str, str] = {}


def config(**options: Any) -> EngineConfig:
    return EngineConfig(**{"model": "/no/such/model", "tensor_parallel": 4, **options})


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)


@pytest.mark.parametrize(
    ("place", "neighbours", "devices", "expected"),
    [
        (0, 2, 2, Place(0, 1)),
        (1, 2, 4, Place(1, 1)),
        (1, 2, 1, Place(0, 2)),
        (2, 3, 2, Place(0, 2)),
        (1, 3, 2, Place(1, 1)),
    ],
)
def test_ranks_take_gpus_in_turn(place: int, neighbours: int, devices: int, expected: Place) -> None:
    assert place_of(place, neighbours, devices) == expected


def test_nccl_without_a_gpu() -> None:
    with pytest.raises(UsageError, match="--group-backend nccl needs a GPU for each rank, and the device is a CPU"):
        check_machine(config(group_backend="nccl"), CPU, 4, NOTHING)


def test_nccl_without_a_gpu_is_refused_before_the_model_is_read() -> None:
    with pytest.raises(UsageError, match="needs a GPU for each rank"):
        build_engine(config(group_backend="nccl", device="cpu"), lambda stage, fraction: None)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_asked_for_and_missing_is_refused_before_the_model_is_read() -> None:
    with pytest.raises(DeviceLostError, match="--device cuda needs a GPU, but torch finds none"):
        build_engine(config(group_backend="nccl", device="cuda"), lambda stage, fraction: None)


@pytest.mark.usefixtures("two_gpus")
def test_fewer_gpus_than_ranks() -> None:
    with pytest.raises(
        UsageError,
        match=r"--tensor-parallel 4 need 4 GPUs here, but torch finds 2 \(CUDA_VISIBLE_DEVICES=0,1\); use "
        "--tensor-parallel 2, or use --device cpu",
    ):
        check_machine(config(), CUDA, 4, {"CUDA_VISIBLE_DEVICES": "0,1"})
    of_members = config(tensor_parallel=6, group=GroupOptions(size=2, address="a:1"))
    with pytest.raises(UsageError, match=r"and --group-size 2 need 3 GPUs here, but torch finds 2; use .*parallel 4"):
        check_machine(of_members, CUDA, 3, NOTHING)
    check_machine(config(tensor_parallel=2), CUDA, 2, NOTHING)


def test_one_gpu_for_two_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UsageError, match="need 2 GPUs here, but torch finds 1; omit --tensor-parallel"):
        check_machine(config(tensor_parallel=2), CUDA, 2, NOTHING)
    check_machine(config(tensor_parallel=2, group_backend="gloo"), CUDA, 2, NOTHING)


def test_torch_without_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    with pytest.raises(UsageError, match="was built without NCCL; use --group-backend gloo"):
        check_machine(config(), CUDA, 4, NOTHING)


@pytest.mark.parametrize(
    ("value", "twice", "once"),
    [
        ("0,0", "0", "0"),
        ("1, 2,01", "01", "1,2"),
        ("GPU-3f2a,GPU-9c,GPU-3f2a11", "GPU-3f2a11", "GPU-3f2a,GPU-9c"),
        ("MIG-7,MIG-7", "MIG-7", "MIG-7"),
    ],
)
def test_one_gpu_twice(value: str, twice: str, once: str) -> None:
    for variable in OF_ROCM:
        message = f"{variable}={value} names the GPU {twice} twice, .*; set {variable}={once}, or use --device cpu"
        with pytest.raises(UsageError, match=message):
            check_visible({variable: value}, OF_ROCM)


def test_gpus_that_differ() -> None:
    for value in ("", "0", "0,1,2", "1,-1,1", "GPU-1,GPU-2", "0,,"):
        check_visible({"CUDA_VISIBLE_DEVICES": value}, OF_CUDA)
    check_visible({"HIP_VISIBLE_DEVICES": "0,0"}, OF_CUDA)


def test_one_gpu_twice_is_refused_although_torch_then_finds_none() -> None:
    """With device "auto" the group would otherwise run on the CPU."""
    twice = {"CUDA_VISIBLE_DEVICES": "0,0"}
    with pytest.raises(UsageError, match="CUDA_VISIBLE_DEVICES=0,0 names the GPU 0 twice"):
        check_machine(config(), CPU, 4, twice)
    check_machine(config(device="cpu"), CPU, 4, twice)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("device", "backend", "ranks", "refused"),
    [
        (CUDA, "auto", 2, "NCCL_SOCKET_IFNAME"),
        (CUDA, "nccl", 2, "NCCL_SOCKET_IFNAME"),
        (CUDA, "gloo", 2, "GLOO_SOCKET_IFNAME"),
        (CPU, "gloo", 2, "GLOO_SOCKET_IFNAME"),
        (CPU, "auto", 1, "GLOO_SOCKET_IFNAME"),
        (CPU, "auto", 2, None),
        (CPU, "local", 2, None),
    ],
)
def test_a_wrong_interface(device: torch.device, backend: str, ranks: int, refused: str | None) -> None:
    """The CPU kernels need none on one machine, and gloo to find the ranks of several."""
    wrong = {"NCCL_SOCKET_IFNAME": "=no-such-0", "GLOO_SOCKET_IFNAME": "no-such-0"}
    options = config(tensor_parallel=2, group_backend=backend)
    if refused is None:
        check_machine(options, device, ranks, wrong)
        return
    with pytest.raises(UsageError, match=f"{refused}=.*no-such-0.*the interfaces with an address are .*lo"):
        check_machine(options, device, ranks, wrong)
