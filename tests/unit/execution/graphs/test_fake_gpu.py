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
from plimsoll_runtime.parallel.member import CountedCollectives
from plimsoll_runtime.parallel.shard import shard

pytest.importorskip("triton")
from kernel_support.fake_gpu import GPU, Watched, fake_gpu, of_the_host


@pytest.fixture(scope="module")
def program() -> Program:
    return program_of(describe(make_model("LlamaConfig", {}).config.to_dict()))


def test_a_step_asks_nothing(program: Program) -> None:
    assert of_the_host(program) == []


class Adding:
    """An exchange of a rank on the GPU. `staged`: it adds on the host, as gloo does."""

    device = GPU
    exchange = None

    def __init__(self, *, staged: bool) -> None:
        self._staged = staged
        self.sums = 0

    def add_up(self, part: Tensor) -> None:
        assert part.device == GPU
        self.sums += 1
        if self._staged:
            part.copy_(part.to("cpu"))

    def gathered(self, data: bytes) -> list[bytes]:
        raise NotImplementedError


@pytest.mark.parametrize("staged", [False, True])
def test_the_sums_of_a_rank_ask_nothing(program: Program, staged: bool) -> None:
    """Those that gloo adds on the host do, and therefore are not captured."""
    adding = Adding(staged=staged)
    found = of_the_host(shard(program, 2, 0), CountedCollectives(adding))
    assert bool(found) == staged
    assert adding.sums > 0


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
