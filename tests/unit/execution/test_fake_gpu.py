"""What would end a capture, or have the host wait, is seen without a GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from model_support.tiny import make_model
from torch import Tensor

from plimsoll_runtime.execution import graphed_choice
from plimsoll_runtime.models.composing import program_of
from plimsoll_runtime.models.program import Program
from plimsoll_runtime.models.registry import describe

pytest.importorskip("triton")
from kernel_support.fake_gpu import of_the_host


@pytest.fixture(scope="module")
def program() -> Program:
    return program_of(describe(make_model("LlamaConfig", {}).config.to_dict()))


def test_a_step_asks_nothing(program: Program) -> None:
    assert of_the_host(program) == []


@pytest.mark.parametrize(
    ("choose", "seen"),
    [
        (lambda best, chosen: chosen * int(best.isfinite().sum()), "aten::_local_scalar_dense"),
        (lambda best, chosen: chosen[best.isfinite()], "aten::nonzero"),
        (lambda best, chosen: chosen + torch.tensor([1]).to(chosen.device), "aten::_to_copy"),
    ],
)
def test_what_asks_the_host_is_seen(
    program: Program, choose: Callable[[Tensor, Tensor], Tensor], seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphed_choice, "tokens_of", choose)
    try:
        found = of_the_host(program)
    except Exception as error:  # noqa: BLE001 - fake tensors have no numbers to tell
        found = [str(error).replace("aten.", "aten::")]
    assert any(seen in each for each in found), found


def test_a_tensor_that_lies_elsewhere_is_seen(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphed_choice, "tokens_of", lambda best, chosen: chosen + torch.zeros(4))
    with pytest.raises(RuntimeError, match="device"):
        of_the_host(program)
