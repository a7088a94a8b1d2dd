"""Arrays by slot follow filled and freed slots, and histories the generated tokens."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plimsoll_runtime.engine.protocol.messages import RequestContext
from plimsoll_runtime.engine.protocol.plan import SlotInit
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.execution.sampling.logits_processors import TokenCounts
from plimsoll_runtime.execution.sampling.state import COLDEST, SlotArrays, draw_of

VOCAB = 50
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1e-9, 0.7, 2.0]),
    top_k=st.sampled_from([-1, 0, 7, 99]),
    top_p=st.sampled_from([0.5, 1.0]),
    min_p=st.sampled_from([0.0, 0.25]),
)


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(st.tuples(st.integers(0, 300), st.none() | PARAMS), max_size=40))
def test_fill_and_free(steps: list[tuple[int, SamplingParams | None]]) -> None:
    arrays, model = SlotArrays(), dict[int, SamplingParams]()
    for slot, params in steps:
        if params is None:
            if model.pop(slot, None) is not None:
                arrays.free(slot)
        else:
            context = RequestContext(params, seed=slot + 1)
            arrays.fill(draw_of(SlotInit(slot, context, prompt_ids=(), output_ids=(4, 5))), VOCAB)
            model[slot] = params
        arrays.check_integrity()
    places = arrays.places(list(model))
    rows = arrays.params(places, torch.device("cpu"))
    wanted = [0.0 if p.greedy else max(p.temperature, COLDEST) for p in model.values()]
    assert rows.temperature.tolist() == np.array(wanted, dtype=np.float32).tolist()
    assert rows.top_k.tolist() == [min(max(p.top_k, 0), VOCAB) for p in model.values()]
    assert rows.top_p.tolist() == [p.top_p for p in model.values()]
    assert rows.min_p.tolist() == [p.min_p for p in model.values()]
    assert arrays.seeds[places].tolist() == [slot + 1 for slot in model]
    assert arrays.num_outputs[places].tolist() == [2] * len(model)
    for empty in {slot for slot, _ in steps} - set(model) | {10_000}:
        with pytest.raises(KeyError, match="are empty"):
            arrays.places([*model, empty])


@given(prompt=st.lists(st.integers(0, 9)), outputs=st.lists(st.integers(0, 40), max_size=60), kept=st.integers(0, 60))
def test_a_history_counts_what_was_generated(prompt: list[int], outputs: list[int], kept: int) -> None:
    history = TokenCounts(prompt, outputs[:kept])
    for token in outputs[kept:]:
        history.add(token)
    counts = Counter(outputs)
    assert dict(zip(history.tokens.tolist(), history.counts.tolist(), strict=True)) == {
        token: counts[token] for token in {*prompt, *outputs}
    }
