"""The number format: the checkpoint's own where the device is fast at it, and what is asked for is honoured."""

from __future__ import annotations

import pytest
import torch
from kernel_support.instructions import BFLOAT16, Build, forced

from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.execution import precision
from plimsoll_runtime.execution.precision import choose_dtype

CPU = torch.device("cpu")
STORED = {"dtype": "bfloat16"}


@pytest.mark.parametrize("build", BFLOAT16, ids=str)
def test_bfloat16_stays_with_every_instruction_set_of_ours(build: Build) -> None:
    with forced(build):
        assert choose_dtype("auto", STORED, CPU, quantised=False) is torch.bfloat16
        assert choose_dtype("auto", {}, CPU, quantised=True) is torch.bfloat16


@pytest.mark.parametrize(("native", "chosen"), [(False, torch.float32), (True, torch.bfloat16)])
def test_without_our_kernels_the_processor_decides(
    monkeypatch: pytest.MonkeyPatch, native: bool, chosen: torch.dtype
) -> None:
    monkeypatch.setattr(precision, "kernels", lambda dtype: None)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: native)
    assert choose_dtype("auto", STORED, CPU, quantised=False) is chosen
    assert choose_dtype("auto", {}, CPU, quantised=True) is chosen


@pytest.mark.parametrize(
    ("config", "chosen"),
    [({"dtype": "float32"}, torch.float32), ({"torch_dtype": "float16"}, torch.float32), ({}, torch.float32)],
)
def test_other_formats(config: dict[str, str], chosen: torch.dtype) -> None:
    assert choose_dtype("auto", config, CPU, quantised=False) is chosen


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_what_is_asked_for_is_honoured(name: str) -> None:
    assert choose_dtype(name, STORED, CPU, quantised=False) is getattr(torch, name)
    with pytest.raises(UsageError, match="--dtype int3 is unknown; choose auto, float32, bfloat16, float16"):
        choose_dtype("int3", STORED, CPU, quantised=False)


@pytest.mark.parametrize("wanted", ["auto", "float32"])
def test_instructions_that_cannot_be_had_are_refused(monkeypatch: pytest.MonkeyPatch, wanted: str) -> None:
    monkeypatch.setenv("PLIMSOLL_CPU_ISA", "sse2")
    with pytest.raises(UsageError, match="PLIMSOLL_CPU_ISA=sse2 is unknown; choose avx2, avx512, avx512_bf16"):
        choose_dtype(wanted, STORED, CPU, quantised=False)
