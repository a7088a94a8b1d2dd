"""The dtype is the checkpoint's own if the device is fast at it, or the requested one."""

from __future__ import annotations

import pytest
import torch

from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.execution.device.select import check_instructions, choose_dtype

CPU = torch.device("cpu")
STORED = {"dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("ours", "native", "chosen"),
    [(True, False, torch.bfloat16), (False, True, torch.bfloat16), (False, False, torch.float32)],
)
def test_bfloat16_stays_where_our_kernels_or_the_processor_compute_in_it(
    monkeypatch: pytest.MonkeyPatch, ours: bool, native: bool, chosen: torch.dtype
) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: native)
    assert choose_dtype("auto", STORED, CPU, quantised=False, ours=ours) is chosen
    assert choose_dtype("auto", {}, CPU, quantised=True, ours=ours) is chosen


@pytest.mark.parametrize(
    ("config", "chosen"),
    [({"dtype": "float32"}, torch.float32), ({"torch_dtype": "float16"}, torch.float32), ({}, torch.float32)],
)
def test_other_formats(config: dict[str, str], chosen: torch.dtype) -> None:
    assert choose_dtype("auto", config, CPU, quantised=False, ours=True) is chosen


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_what_is_asked_for_is_honoured(name: str) -> None:
    assert choose_dtype(name, STORED, CPU, quantised=False, ours=True) is getattr(torch, name)
    with pytest.raises(UsageError, match="--dtype int3 is unknown; choose auto, float32, bfloat16, float16"):
        choose_dtype("int3", STORED, CPU, quantised=False, ours=True)


def test_instructions_that_cannot_be_had_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_instructions()
    monkeypatch.setenv("PLIMSOLL_CPU_ISA", "sse2")
    with pytest.raises(UsageError, match="PLIMSOLL_CPU_ISA=sse2 is unknown; choose avx2, avx512, avx512_bf16, amx"):
        check_instructions()


@pytest.mark.parametrize("native", [True, False])
def test_bfloat16_on_a_gpu_is_its_own_or_none(monkeypatch: pytest.MonkeyPatch, native: bool) -> None:
    """CUDA's emulation is slow, and no Triton kernel uses it."""
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation or native)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    gpu = torch.device("cuda")
    auto = choose_dtype("auto", STORED, gpu, quantised=False, ours=False)
    assert auto is (torch.bfloat16 if native else torch.float16)
    if native:
        assert choose_dtype("bfloat16", STORED, gpu, quantised=False, ours=False) is torch.bfloat16
    else:
        with pytest.raises(UsageError, match="--dtype bfloat16: Tesla T4 has no bfloat16; choose float16, or float32"):
            choose_dtype("bfloat16", STORED, gpu, quantised=False, ours=False)
    assert choose_dtype("float16", STORED, gpu, quantised=False, ours=False) is torch.float16
