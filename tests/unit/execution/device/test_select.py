"""The selection of a model's device: if a GPU is required and there is none, nothing starts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from plimsoll_runtime.errors import DeviceLostError, ErrorKind
from plimsoll_runtime.execution.device import select as choosing
from plimsoll_runtime.execution.device.diagnostics import DeviceFacts
from plimsoll_runtime.execution.device.select import choose


@pytest.mark.parametrize(
    ("wanted", "seen", "device"),
    [("auto", True, "cuda"), ("auto", False, "cpu"), ("cuda", True, "cuda"), ("cpu", True, "cpu")],
)
def test_what_a_model_runs_on(wanted: str, seen: bool, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: seen)
    assert choose(wanted) == torch.device(device)


def test_for_the_cpu_no_driver_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("is_available", "init", "device_count"):
        monkeypatch.setattr(torch.cuda, name, lambda: pytest.fail("a driver is asked"))
    assert choose("cpu") == torch.device("cpu")


def raising(error: Exception) -> Callable[[], None]:
    def init() -> None:
        raise error

    return init


@pytest.mark.parametrize(
    ("init", "told"),
    [
        (
            raising(RuntimeError("No CUDA GPUs are available\nand more")),
            "torch finds none: No CUDA GPUs are available; ",
        ),
        (
            raising(AssertionError("Torch not compiled with CUDA enabled")),
            "none: Torch not compiled with CUDA enabled; ",
        ),
        (lambda: None, "torch finds none: torch gives no reason; "),
    ],
    ids=["none", "build", "silent"],
)
def test_where_there_is_none_the_reason_is_torchs_own(
    init: Callable[[], None], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", init)
    monkeypatch.setattr(choosing, "read_facts", DeviceFacts)
    with pytest.raises(DeviceLostError, match=told) as caught:
        choose("cuda")
    assert caught.value.kind is ErrorKind.DEVICE
    assert caught.value.__cause__ is None, "else what torch says would be taken for a fault of the device"
