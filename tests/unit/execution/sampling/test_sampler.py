"""One batch with many kinds of parameters: penalties, bias, min_tokens, seeds, log probabilities, and rows that are not
finite.
"""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plimsoll_runtime.engine.protocol.messages import RequestContext
from plimsoll_runtime.engine.protocol.plan import SlotInit
from plimsoll_runtime.engine.protocol.sampling_params import SMALLEST, ParamsError, SamplingParams
from plimsoll_runtime.execution.sampling.sampler import NOT_FINITE, Sampler

VOCAB = 64
EOS = 2


def sampler_with(*params: SamplingParams, prompt: tuple[int, ...] = (5, 6, 7)) -> Sampler:
    sampler = Sampler(VOCAB, (EOS,))
    for slot, p in enumerate(params):
        sampler.fill(SlotInit(slot, RequestContext(p, 11 if p.seed is None else p.seed), prompt))
    return sampler


def logits_of(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed))


def greedy(**options: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, **options)


def run(sampler: Sampler, logits: torch.Tensor, slots: list[int]) -> list[int | None]:
    return [o.token_id for o in sampler.sample(logits.clone(), slots)]


def test_a_nucleus_of_nothing_is_greedy() -> None:
    """Together with rows that draw, and at the highest temperature."""
    logits = logits_of(4)
    nothing = SamplingParams(top_p=0.0, temperature=100.0)
    for seed in range(20):
        chosen = run(sampler_with(nothing, SamplingParams(seed=seed), nothing, greedy()), logits, [0, 1, 2, 3])
        best = logits.argmax(-1).tolist()
        assert [chosen[0], *chosen[2:]] == [best[0], *best[2:]]


def test_greedy_takes_the_most_likely() -> None:
    logits = logits_of(3)
    assert run(sampler_with(*[greedy()] * 3), logits, [0, 1, 2]) == logits.argmax(-1).tolist()


def test_a_seed_gives_the_same_tokens_in_any_company() -> None:
    mine = SamplingParams(seed=42, temperature=1.2, top_p=0.9)
    others = [SamplingParams(seed=i, top_k=3) for i in range(3)] + [greedy()]
    steps = [logits_of(1, seed) for seed in range(20)]
    alone, crowd = sampler_with(mine), sampler_with(mine, *others)
    expected = [run(alone, step, [0])[0] for step in steps]
    observed = []
    for i, step in enumerate(steps):
        order = [0, 1, 2, 3, 4] if i % 2 else [3, 0, 4]
        batch = logits_of(len(order), 100 + i)
        batch[order.index(0)] = step[0]
        observed.append(run(crowd, batch, order)[order.index(0)])
    assert observed == expected
    assert len(set(expected)) > 5


def test_a_resumed_sequence_goes_on_with_the_same_draws() -> None:
    params = SamplingParams(seed=9)
    whole = sampler_with(params)
    tokens = [run(whole, logits_of(1, s), [0])[0] for s in range(6)]
    resumed = Sampler(VOCAB, (EOS,))
    resumed.fill(SlotInit(4, RequestContext(params, seed=9), (5,), [t or 0 for t in tokens[:3]]))
    assert [run(resumed, logits_of(1, s), [4])[0] for s in range(3, 6)] == tokens[3:]


def test_repetition_penalty_matches_transformers() -> None:
    from transformers import RepetitionPenaltyLogitsProcessor

    logits = logits_of(1, 8)
    prompt, out = (1, 2, 9, 9, 30), [4, 4, 5]
    expected = RepetitionPenaltyLogitsProcessor(1.7)(torch.tensor([[*prompt, *out]]), logits.clone())
    sampler = Sampler(VOCAB, ())
    sampler.fill(SlotInit(0, RequestContext(greedy(repetition_penalty=1.7, logprobs=0), 1), prompt, out))
    changed = logits.clone()
    sampler.sample(changed, [0])
    torch.testing.assert_close(changed, expected)


def test_presence_and_frequency_count_generated_tokens_only() -> None:
    sampler = Sampler(VOCAB, ())
    context = RequestContext(greedy(presence_penalty=0.5, frequency_penalty=0.25), 1)
    sampler.fill(SlotInit(0, context, (9,), [4, 4, 5]))
    logits = logits_of(1)
    changed = logits.clone()
    sampler.sample(changed, [0])
    expected = logits.clone()
    expected[0, 4] -= 0.5 + 2 * 0.25
    expected[0, 5] -= 0.5 + 0.25
    torch.testing.assert_close(changed, expected)


def test_counts_grow_with_what_is_sampled() -> None:
    sampler = sampler_with(greedy(frequency_penalty=2.0))
    flat = torch.zeros(1, VOCAB)
    seen = [run(sampler, flat, [0])[0] for _ in range(VOCAB)]
    assert sorted(t for t in seen if t is not None) == list(range(VOCAB))


def test_bias_moves_and_ids_outside_the_vocabulary_do_nothing() -> None:
    tokens = run(sampler_with(greedy(logit_bias={3: 100.0, VOCAB + 5: 100.0}), greedy()), logits_of(2), [0, 1])
    assert tokens == [3, int(logits_of(2)[1].argmax())]


def test_min_tokens_holds_back_eos_and_stop_tokens() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, EOS], logits[0, 8] = 9.0, 8.0
    sampler = sampler_with(greedy(min_tokens=2, max_tokens=5, stop_token_ids=(8,)))
    tokens = [run(sampler, logits, [0])[0] for _ in range(3)]
    assert tokens[:2] == [0, 0]
    assert tokens[2] == EOS


def test_logprobs_are_the_models_own_whatever_was_adjusted() -> None:
    logits = logits_of(2, 4)
    sampler = sampler_with(greedy(logprobs=3, logit_bias={10: 50.0}), SamplingParams(seed=3, temperature=0.5))
    outputs = sampler.sample(logits.clone(), [0, 1])
    reference = torch.log_softmax(logits[0].double(), -1)
    report = outputs[0].logprob
    assert report is not None
    assert report.token_id == outputs[0].token_id == 10
    assert report.logprob == pytest.approx(float(reference[10]), abs=1e-5)
    assert report.rank == int((logits[0] > logits[0, 10]).sum()) + 1
    values, ids = reference.topk(3)
    assert [t for t, _ in report.top] == ids.tolist()
    assert [v for _, v in report.top] == pytest.approx(values.tolist(), abs=1e-5)
    assert outputs[1].logprob is None


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("params", [greedy(), SamplingParams(seed=1, top_p=0.5)])
def test_a_row_that_is_not_finite_fails_alone(bad: float, params: SamplingParams) -> None:
    logits = logits_of(3)
    logits[1, 17] = bad
    outputs = sampler_with(params, params, params).sample(logits.clone(), [0, 1, 2])
    assert outputs[1].error == NOT_FINITE
    assert outputs[1].token_id is None
    healthy = sampler_with(params, params, params).sample(logits_of(3), [0, 1, 2])
    assert [outputs[i].token_id for i in (0, 2)] == [healthy[i].token_id for i in (0, 2)]


def test_a_very_low_temperature_is_greedy() -> None:
    logits = logits_of(1) * 30
    assert run(sampler_with(SamplingParams(seed=1, temperature=1e-30)), logits, [0]) == [int(logits.argmax())]


def test_a_freed_slot_is_forgotten() -> None:
    sampler = sampler_with(greedy())
    sampler.free(0)
    with pytest.raises(KeyError):
        sampler.sample(logits_of(1), [0])


def test_who_takes_a_slot_next_is_told_only_what_it_asked_for() -> None:
    sampler = sampler_with(greedy(logprobs=3, prompt_logprobs=2, logit_bias={1: 100.0}))
    assert sampler._state.prompt_logprob_count(0) == 2
    sampler.free(0)
    sampler.fill(SlotInit(0, RequestContext(greedy(), seed=1), prompt_ids=(5,)))
    logits = logits_of(1)
    (output,) = sampler.sample(logits.clone(), [0])
    assert (output.token_id, output.logprob) == (int(logits.argmax()), None)
    assert sampler._state.prompt_logprob_count(0) == 0


DOUBLES = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([-0.0, 5e-324, 1e-300, 1e-45, SMALLEST, -SMALLEST, 0.01, 1e-38, 1e308]),
    st.floats(-2.0, 100.0),
)
FIELDS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias")


def params_or_field(field: str, value: Any) -> SamplingParams | str:
    """Return the parameters, or the field for which they are refused."""
    try:
        return SamplingParams(**{field: value})
    except ParamsError as refused:
        return refused.field


@settings(deadline=None)
@given(field=st.sampled_from(FIELDS), value=DOUBLES, sharpness=st.sampled_from([1.0, 1e4]))
def test_any_number_in_any_field_is_refused_by_name_or_gives_a_token(
    field: str, value: float, sharpness: float
) -> None:
    params = params_or_field(field, {5: value} if field == "logit_bias" else value)
    if isinstance(params, str):
        assert params == field
        return
    sampler = sampler_with(params)
    logits = sharpness * logits_of(1)
    for _ in range(2):  # the second time with a token of its own to penalise
        (output,) = sampler.sample(logits.clone(), [0])
        assert output.error is None
