"""Findings about a machine's GPUs, from invented facts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plimsoll_runtime.execution.device.diagnostics import DeviceFacts, Gpu, Holder, UsedDevice, findings

GIB = 2**30
H100 = UsedDevice("NVIDIA H100 80GB HBM3", "GPU-aa11", (9, 0), 80 * GIB, 79 * GIB + GIB // 2)
GPUS = (Gpu("GPU-aa11", "NVIDIA H100 80GB HBM3"), Gpu("GPU-bb22", "NVIDIA H100 80GB HBM3"))
CUDA = DeviceFacts(built_for=(13, 2), driver_cuda=(13, 2))


def texts(facts: DeviceFacts) -> list[str]:
    return [found.text for found in findings(facts)]


@pytest.mark.parametrize(
    "facts",
    [
        DeviceFacts(),
        DeviceFacts(built_for=(13, 2)),
        DeviceFacts(built_for=(13, 2), visible=""),
        replace(CUDA, used=H100),
        replace(CUDA, used=H100, visible="0", gpus=GPUS),
        replace(CUDA, used=H100, visible="GPU-aa,GPU-bb22", gpus=GPUS),
        replace(CUDA, used=H100, visible="MIG-4711", gpus=GPUS),
        replace(CUDA, used=H100, driver_cuda=(13, 0)),
        replace(CUDA, driver_cuda=(13, 0)),
    ],
    ids=[
        "no-gpu",
        "no-driver",
        "hidden-on-no-gpu",
        "fine",
        "named",
        "named-by-uuid",
        "slice",
        "minor-version",
        "minor-version-lost",
    ],
)
def test_where_nothing_is_amiss_nothing_is_said(facts: DeviceFacts) -> None:
    assert texts(facts) == []


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (
            replace(CUDA, driver_cuda=(12, 4)),
            ["driver has CUDA 12.4", "built for 13.2", "update the driver", "CUDA 12"],
        ),
        (replace(CUDA, built_for=None), ["built without CUDA", "install a build of torch with CUDA"]),
        (replace(CUDA, visible="", gpus=GPUS), ["CUDA_VISIBLE_DEVICES='' hides all 2 GPUs", "unset it"]),
        (replace(CUDA, visible="-1"), ["CUDA_VISIBLE_DEVICES='-1' hides every GPU"]),
        (replace(CUDA, visible="7", gpus=GPUS), ["names GPU 7", "this machine has GPU 0 to 1", "nvidia-smi -L"]),
        (replace(CUDA, visible="GPU-cc", gpus=GPUS), ["names 'GPU-cc'"]),
        (replace(CUDA, visible="0", gpus=()), ["names GPU 0", "this machine has no GPU"]),
        (replace(CUDA, gpus=GPUS), ["the driver shows 2 GPUs, and CUDA finds none", "nvidia.com/gpu"]),
        (
            replace(CUDA, gpus=tuple(replace(g, mig=True) for g in GPUS)),
            ["MIG is on", "no slice", "nvidia-smi mig -cgi"],
        ),
    ],
    ids=["old", "cpu-build", "empty", "minus", "number", "uuid", "none", "not-given", "no-slice"],
)
def test_why_models_run_on_the_cpu(facts: DeviceFacts, said: list[str]) -> None:
    (found,) = findings(facts)
    assert found.serious
    assert "models run on the CPU" in found.text
    assert [words for words in said if words not in found.text] == []


def test_what_is_named_behind_a_wrong_one_is_left_out() -> None:
    (text,) = texts(replace(CUDA, used=H100, visible="0,4,1", gpus=GPUS))
    assert "names GPU 4, and this machine has GPU 0 to 1: CUDA ignores it and all entries after it" in text


def test_a_slice_says_what_memory_is_its_own() -> None:
    used = replace(H100, name="NVIDIA H100 80GB HBM3 MIG 1g.10gb", total=10 * GIB, free=10 * GIB)
    (found,) = findings(replace(CUDA, used=used))
    assert not found.serious
    assert found.text.startswith("NVIDIA H100 80GB HBM3 MIG 1g.10gb is a MIG slice: its memory is only 10.0 GiB")


def test_a_device_without_bfloat16() -> None:
    used = UsedDevice("Tesla T4", "GPU-cc33", (7, 5), 15 * GIB, 15 * GIB)
    (text,) = texts(replace(CUDA, used=used))
    assert "Tesla T4 (compute capability 7.5) has no bfloat16" in text
    assert "float16" in text


def held(*holders: Holder, free: int = 20) -> DeviceFacts:
    gpu = replace(GPUS[0], holders=holders)
    return replace(CUDA, used=replace(H100, free=free * GIB), gpus=(GPUS[1], gpu))


def test_memory_that_others_hold_is_told_with_who() -> None:
    (text,) = texts(held(Holder(4711, "python3", 59 * GIB)))
    assert "60.0 GiB of 80.0 GiB of NVIDIA H100 80GB HBM3 are already held" in text
    assert "by pid 4711 (python3) 59.0 GiB: " in text
    assert "end these processes" in text


@pytest.mark.parametrize("facts", [held(), replace(held(), gpus=None)], ids=["unseen", "unasked"])
def test_or_that_nobody_can_be_seen(facts: DeviceFacts) -> None:
    (text,) = texts(facts)
    assert "by processes that are not visible here" in text


def test_what_engines_of_the_same_host_hold_is_planned() -> None:
    mine = Holder(10, "plimsoll-engine", 59 * GIB, sibling=True)
    assert texts(held(mine)) == []
    (text,) = texts(held(mine, Holder(4711, "python3", 10 * GIB), free=5))
    assert text.startswith("16.0 GiB of 80.0 GiB")
    assert "pid 10" not in text
    assert "pid 4711 (python3) 10.0 GiB" in text


def test_cudas_own_memory_is_nobodys() -> None:
    assert texts(held(free=79)) == []
    assert len(texts(held(free=77))) == 1
