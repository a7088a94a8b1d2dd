"""Ops that would end a capture, or make the host wait, are found without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from model_support.tiny import make_model
from torch import Tensor

from plimsoll_runtime.engine.protocol.messages import RequestContext
from plimsoll_runtime.engine.protocol.plan import SlotInit
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.execution.graphs import sampling
from plimsoll_runtime.execution.sampling.sampler import Sampler
from plimsoll_runtime.models.compose.decoder import program_of
from plimsoll_runtime.models.program import Program
from plimsoll_runtime.models.registry.registry import describe

pytest.importorskip("triton")
from kernel_support.fake_gpu import GPU, Watched, fake_gpu, of_the_host


@pytest.fixture(scope="module")
def program() -> Program:
    return program_of(describe(make_model("LlamaConfig", {}).config.to_dict()))


def test_a_step_asks_nothing(program: Program) -> None:
    assert of_the_host(program) == []


def test_a_choice_without_graphs_is_not_waited_for() -> None:
    """With penalties, biases and log probabilities."""
    wishes: list[dict[str, Any]] = [
        {},
        {"temperature": 0.9, "top_p": 0.8, "repetition_penalty": 1.5, "frequency_penalty": 0.5},
        {"presence_penalty": 1.5, "logprobs": 0},
        {"logprobs": 3, "logit_bias": {5: 4.0}},
        {"min_tokens": 6, "stop_token_ids": (1, 2)},
    ]
    sampler = Sampler(50, (2,))
    for slot, wish in enumerate(wishes):
        context = RequestContext(SamplingParams(**wish), seed=1)
        sampler.fill(SlotInit(slot, context, prompt_ids=[1, 2, 3], output_ids=[4]))
    with fake_gpu(), Watched() as watched:
        choice, tokens = sampler.choose(torch.empty(len(wishes), 50, device=GPU), range(len(wishes)))
    assert watched.found == []
    assert choice.reports is not None
    assert {tokens.device, choice.reports.top.device} == {GPU}


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
    monkeypatch.setattr(sampling, "tokens_of", choose)
    try:
        found = of_the_host(program)
    except Exception as error:  # noqa: BLE001 - fake tensors have no numbers to tell
        found = [str(error).replace("aten.", "aten::")]
    assert any(seen in each for each in found), found


def test_a_tensor_that_lies_elsewhere_is_seen(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "tokens_of", lambda best, chosen: chosen + torch.zeros(4))
    with pytest.raises(RuntimeError, match="device"):
        of_the_host(program)
