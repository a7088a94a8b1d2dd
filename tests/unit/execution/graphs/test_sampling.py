"""Graphs sample the same tokens as the sampler, and leave them for the next step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_support.recorder import Recorder
from torch import Tensor

from plimsoll_runtime.engine.protocol.messages import RequestContext
from plimsoll_runtime.engine.protocol.plan import SlotInit
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.execution.graphs.sampling import SamplingGraphs
from plimsoll_runtime.execution.inputs.device_state import DeviceState
from plimsoll_runtime.execution.sampling.sampler import NOT_FINITE, Sampler
from plimsoll_runtime.execution.sampling.state import NO_TOKEN
from plimsoll_runtime.models.decoder import Decoder

SLOTS, HIDDEN, VOCAB = 9, 4, 23
CPU = torch.device("cpu")
BUCKETS = (1, 2, 4, 8, SLOTS)


class Head:
    """A decoder that only has a head."""

    outline: Any = SimpleNamespace(facts=SimpleNamespace(hidden_size=HIDDEN, vocab_size=VOCAB))
    dtype = torch.float32
    weight_bytes = 0

    def __init__(self) -> None:
        self.matrix = torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(3))

    def __call__(self, *args: Any) -> Tensor:
        raise NotImplementedError

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden.float() @ self.matrix.T


class Choices(SamplingGraphs):
    """Graphs with a sampler and a state of their own."""

    def __init__(self, capture: Recorder | None = None, *, captured: bool = True) -> None:
        self.sampler = Sampler(VOCAB, ())
        self.state = DeviceState(SLOTS, 1, 10, 4, CPU)
        self.head = Head()
        super().__init__(cast(Decoder, self.head), self.sampler, self.state, capture or Recorder())
        for each in self.wanted() if captured else ():
            each.add()

    def choose(self, slots: list[int], hidden: Tensor, picked: list[int] | None = None) -> Tensor | None:
        """Sample as a runner does."""
        self.state.upload_buffer.start_step()
        posted = self.post(slots, None if picked is None else np.array(picked))
        self.state.upload_buffer.send()
        return None if posted is None else self.run(posted, hidden)


def params() -> st.SearchStrategy[SamplingParams]:
    """Parameters that graphs support."""
    return st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.0, 0.7, 1.0, 5.0]),
        top_k=st.sampled_from([0, 1, 3, 10]),
        top_p=st.sampled_from([1.0, 0.9, 0.4]),
        min_p=st.sampled_from([0.0, 0.2]),
    )


@pytest.mark.long
@settings(deadline=None)
@given(data=st.data())
def test_they_are_the_samplers(data: st.DataObject) -> None:
    """Step after step, for any slots and rows; a row that is not finite has no token."""
    choices, plain = Choices(), Sampler(VOCAB, ())
    captured = len(choices._graphs)
    assert captured == len(BUCKETS)
    for slot in range(SLOTS):
        init = SlotInit(slot, RequestContext(data.draw(params()), data.draw(st.integers(0, 2**62))), prompt_ids=[1])
        choices.sampler.fill(init)
        plain.fill(init)
    last = [0] * SLOTS
    for step in range(data.draw(st.integers(1, 6))):
        slots = data.draw(st.permutations(range(SLOTS)))[: data.draw(st.integers(1, SLOTS))]
        rows = torch.randn(2 * SLOTS, HIDDEN, generator=torch.Generator().manual_seed(step))
        if data.draw(st.booleans()):
            rows[data.draw(st.integers(0, SLOTS - 1))] = float("nan")
        picked = data.draw(st.permutations(range(2 * SLOTS)))[: len(slots)] if data.draw(st.booleans()) else None
        hidden = rows[: len(slots)] if picked is None else rows[picked]
        found = choices.choose(slots, rows if picked is not None else hidden, picked)
        expected = plain.sample(choices.head.logits(hidden), slots)
        assert found is not None
        assert found.tolist() == [NO_TOKEN if o.token_id is None else o.token_id for o in expected]
        assert [o.error for o in expected if o.token_id is None] == [NOT_FINITE] * found.tolist().count(NO_TOKEN)
        for slot, output in zip(slots, expected, strict=True):
            last[slot] = output.token_id or 0
        assert choices.state.chosen.tolist()[:-1] == [*last, 0]
        choices.state.check_integrity()
    assert len(choices._graphs) == captured


@pytest.mark.parametrize(
    "wishes",
    [{"repetition_penalty": 1.2}, {"logit_bias": {3: 1.0}}, {"min_tokens": 2, "stop_token_ids": (4,)}, {"logprobs": 1}],
)
def test_rows_that_ask_for_more(wishes: dict[str, Any]) -> None:
    choices = Choices()
    choices.sampler.fill(SlotInit(0, RequestContext(SamplingParams(), seed=1), prompt_ids=[1]))
    choices.sampler.fill(SlotInit(1, RequestContext(SamplingParams(**wishes), seed=1), prompt_ids=[1]))
    hidden = torch.zeros(2, HIDDEN)
    assert choices.choose([0], hidden[:1]) is not None
    assert choices.choose([0, 1], hidden) is None
    choices.sampler.constrains = True
    assert choices.choose([0], hidden[:1]) is None


def test_what_has_no_graph_is_not_posted() -> None:
    choices = Choices(captured=False)
    for slot in range(3):
        choices.sampler.fill(SlotInit(slot, RequestContext(SamplingParams(), seed=1), prompt_ids=[1]))
    assert [(each.kind, each.rows) for each in choices.wanted()] == [("sampled rows", size) for size in BUCKETS]
    choices.wanted()[2].add()
    assert choices.choose([], torch.zeros(0, HIDDEN)) is None
    assert choices.choose([0, 1], torch.zeros(2, HIDDEN)) is None
    assert choices.choose([0, 1, 2], torch.zeros(3, HIDDEN)) is not None
