"""Triton's kernels sample tokens that the definition allows."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sampling_support.definition import Wish, allowed, distribution, row_params
from sampling_support.logits import SHAPES, shaped
from sampling_support.masking import by_hand, random_masks

from plimsoll_kernels.sampling import kernel, scratch
from plimsoll_kernels.sampling.op import sample
from plimsoll_kernels.sampling.params import RowParams

GARBAGE = 0x5A5A5A5A
"""A token count, a place and a logit that no kernel has written."""
WISHES = st.builds(
    Wish,
    temperature=st.sampled_from([0.0, 1e-5, 0.3, 1.0, 1.7, 100.0, 1e5]),
    top_k=st.one_of(st.just(0), st.integers(1, 60), st.integers(1, 1200), st.just(2**31 - 1)),
    top_p=st.one_of(st.just(1.0), st.sampled_from([0.0, 0.001, 0.1, 0.5, 0.9, 0.95, 0.999, 1 - 2**-24])),
    min_p=st.one_of(st.just(0.0), st.sampled_from([1e-6, 0.01, 0.7, 0.99])),
)
UNIFORMS = st.one_of(st.sampled_from([0.0, 1.0 - 2.0**-53]), st.floats(0.0, 1.0, exclude_max=True))


@pytest.fixture(autouse=True)
def _garbage_in_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uninitialised integers are wrong; floats are NaN already (conftest)."""
    plain = torch.empty

    def poisoned(*args: object, **kwargs: object) -> torch.Tensor:
        tensor: torch.Tensor = plain(*args, **kwargs)  # type: ignore[call-overload]
        return tensor if tensor.is_floating_point() else tensor.fill_(GARBAGE)

    monkeypatch.setattr(torch, "empty", poisoned)


def spoil(logits: torch.Tensor, kind: str) -> torch.Tensor:
    """Return logits `[V]` with special values that models and callers produce."""
    if kind == "coarse":
        return logits.bfloat16().float()
    if kind == "far from 0":
        return logits - 1e4
    if kind == "outlier":
        return logits.scatter(0, torch.tensor([len(logits) // 2]), float(logits.max()) + 7.0)
    if kind == "banned":
        return logits.where(torch.arange(len(logits)) % 3 == 0, -1e30)
    return logits


def choose(logits: torch.Tensor, wishes: list[Wish], uniform: list[float], device: str) -> list[int]:
    params = row_params(*wishes, device=device)
    drawn = torch.tensor(uniform, dtype=torch.float64, device=device)
    best, tokens = sample(logits.to(device), params, drawn, implementation="triton")
    assert torch.equal(best.cpu(), logits.amax(-1))
    chosen: list[int] = tokens.tolist()
    return chosen


@pytest.mark.long
@settings(
    deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    seed=st.integers(0, 2**32),
    vocab=st.integers(1, 300),
    shape=st.sampled_from(SHAPES),
    top_k=st.sampled_from([0, 1, 7, 100, 299]),
    top_p=st.sampled_from([1.0, 0.001, 0.5, 0.95, 1 - 2**-24]),
    min_p=st.sampled_from([0.0, 0.1, 1.0]),
    uniform=st.floats(0.0, 1.0, exclude_max=True),
)
def test_any_row(
    triton_device: str,
    seed: int,
    vocab: int,
    shape: str,
    top_k: int,
    top_p: float,
    min_p: float,
    uniform: float,
) -> None:
    logits, wish = shaped(seed, vocab, shape), Wish(0.9, top_k, top_p, min_p)
    assert choose(logits[None], [wish], [uniform], triton_device)[0] in allowed(logits, wish, uniform)


@pytest.mark.long
@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32),
    vocab=st.one_of(st.sampled_from([1, 2, 127, 128, 129, 1024, 1025]), st.integers(1, 3000)),
    rows=st.lists(
        st.tuples(
            st.sampled_from(SHAPES),
            st.sampled_from(["as it is", "coarse", "far from 0", "outlier", "banned"]),
            WISHES,
            UNIFORMS,
        ),
        min_size=1,
        max_size=6,
    ),
)
def test_any_batch(triton_device: str, seed: int, vocab: int, rows: list[tuple[str, str, Wish, float]]) -> None:
    logits = torch.stack([spoil(shaped(seed + i, vocab, shape), kind) for i, (shape, kind, _, _) in enumerate(rows)])
    tokens = choose(logits, [wish for _, _, wish, _ in rows], [u for _, _, _, u in rows], triton_device)
    for row, (_, _, wish, u), token in zip(logits, rows, tokens, strict=True):
        if wish.temperature:
            assert token in allowed(row, wish, u)
        else:
            assert token == row.argmax()


@pytest.mark.long
@pytest.mark.parametrize("wish", [Wish(), Wish(1.5, top_k=12, top_p=0.9, min_p=0.05), Wish(1.3, top_p=0.8)], ids=str)
def test_even_uniforms_give_the_distribution_itself(triton_device: str, wish: Wish) -> None:
    draws, vocab = 100, 150
    logits = torch.randn(vocab, generator=torch.Generator().manual_seed(3)) * 2
    uniform = [(i + 0.5) / draws for i in range(draws)]
    tokens = choose(logits.expand(draws, -1).contiguous(), [wish] * draws, uniform, triton_device)
    observed = torch.bincount(torch.tensor(tokens), minlength=vocab).double() / draws
    assert (observed - torch.from_numpy(distribution(logits, wish))).abs().max() <= 1.5 / draws


def mixed(rows: int, vocab: int, device: str) -> tuple[torch.Tensor, RowParams, torch.Tensor]:
    wishes = [Wish(0.8 + i / 9, (0, 40, 900)[i % 3], (1.0, 0.9)[i % 2], (0.0, 0.02)[i // 2 % 2]) for i in range(rows)]
    logits = torch.stack([shaped(i, vocab, SHAPES[i % len(SHAPES)]) for i in range(rows)])
    uniform = torch.linspace(0.03, 0.97, rows, dtype=torch.float64)
    return logits.to(device), row_params(*wishes, device=device), uniform.to(device)


@pytest.mark.matrix(2)
@pytest.mark.parametrize("processors", [1, 5, 500])
def test_a_row_is_the_same_in_every_batch_and_division(
    triton_device: str, monkeypatch: pytest.MonkeyPatch, processors: int
) -> None:
    logits, params, uniform = mixed(12, 3001, triton_device)
    whole = sample(logits, params, uniform, implementation="triton")[1].tolist()
    monkeypatch.setattr(kernel, "multiprocessors", lambda device: processors)
    for part in (torch.arange(4), torch.arange(4, 12)):
        assert sample(logits[part], params.rows(part), uniform[part], implementation="triton")[1].tolist() == [
            whole[i] for i in part
        ]


@pytest.mark.long
def test_more_candidates_than_the_list_holds(triton_device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    logits, params, uniform = mixed(12, 1500, triton_device)
    expected = sample(logits, params, uniform, implementation="triton")
    monkeypatch.setattr(scratch, "MOST_CANDIDATES", 3)
    actual = sample(logits, params, uniform, implementation="triton")
    assert torch.equal(actual[0], expected[0])
    assert torch.equal(actual[1], expected[1])


@pytest.mark.matrix(2)
@pytest.mark.parametrize("wish", [Wish(top_k=8, min_p=0.5), Wish(top_p=0.9, min_p=0.5)], ids=str)
def test_the_smallest_weight_counts_where_another_filter_ends(triton_device: str, wish: Wish) -> None:
    logits = torch.full((300,), -20.0)
    logits[3] = 0.0
    logits[150:155] = -1.0
    logits[200:205] = -1.005
    uniform = [0.0, 0.3, 0.6, 0.99]
    assert choose(logits.expand(4, -1).contiguous(), [wish] * 4, uniform, triton_device) == [3] * 4


def test_rows_without_a_token_to_choose(triton_device: str) -> None:
    logits = torch.full((2, 300), -math.inf)
    logits[1, 200:] = math.nan
    params = row_params(Wish(top_p=0.5), Wish(0.0), device=triton_device)
    best, tokens = sample(
        logits.to(triton_device), params, torch.zeros(2, dtype=torch.float64, device=triton_device),
        implementation="triton",
    )  # fmt: skip
    assert best[0] == -math.inf
    assert best[1].isnan()
    assert 0 <= int(tokens[0]) < 300
    assert int(tokens[1]) == 200


def test_several_programs_a_row_and_rows_apart(triton_device: str) -> None:
    vocab = 4096 + 77
    wishes = [Wish(0.0), Wish(), Wish(0.8, 40, 0.95), Wish(1.0, 0, 0.9), Wish(1.3, 0, 1.0, 0.01), Wish(2.0, 4100, 0.99)]
    logits = torch.full((6, vocab + 30), math.nan)
    logits[:, 10 : 10 + vocab] = torch.stack([shaped(i, vocab, SHAPES[i % len(SHAPES)]) for i in range(6)])
    uniform = [0.5, 0.1, 0.99, 0.3, 0.7, 0.42]
    logits = logits[:, 10 : 10 + vocab]
    tokens = choose(logits, wishes, uniform, triton_device)
    assert tokens[0] == logits[0].argmax()
    for row, wish, u, token in zip(logits[1:], wishes[1:], uniform[1:], tokens[1:], strict=True):
        assert token in allowed(row, wish, u), wish


@pytest.mark.long
def test_of_equal_logits_the_first_stay(triton_device: str) -> None:
    logits = torch.full((1, 200), -40.0)
    logits[0, 50:150] = 2.0
    for wish in (Wish(top_k=10), Wish(top_p=0.095), Wish(top_k=20, top_p=0.5)):
        tokens = [choose(logits, [wish], [(i + 0.5) / 20], triton_device)[0] for i in range(20)]
        assert set(tokens) == set(range(50, 60)), wish


@pytest.mark.matrix(2)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_that_is_not_finite_is_told_and_disturbs_nobody(triton_device: str, bad: float) -> None:
    logits = torch.stack([shaped(i, 90, "peaked") for i in range(3)]).to(triton_device)
    params = row_params(*[Wish(top_p=0.9)] * 3, device=triton_device)
    uniform = torch.full((3,), 0.5, dtype=torch.float64, device=triton_device)
    expected = sample(logits, params, uniform, implementation="triton")
    broken = logits.clone()
    broken[1, 80] = bad
    best, tokens = sample(broken, params, uniform, implementation="triton")
    assert not best[1].isfinite()
    assert best[1].isnan() == math.isnan(bad)
    assert torch.equal(best[[0, 2]], expected[0][[0, 2]])
    assert torch.equal(tokens[[0, 2]], expected[1][[0, 2]])


@pytest.mark.matrix(2)
@pytest.mark.parametrize("vocab", [33, 500])
def test_what_a_mask_leaves_out_counts_for_nothing(triton_device: str, vocab: int) -> None:
    wishes = [Wish(0.0), Wish(), Wish(0.8, 40, 0.95), Wish(1.0, 0, 0.9), Wish(1.3, 0, 1.0, 0.01), Wish(2.0, 20, 0.99)]
    params = row_params(*wishes, device=triton_device)
    logits = torch.stack([shaped(i, vocab, SHAPES[i % len(SHAPES)]) for i in range(6)]).to(triton_device)
    uniform = torch.linspace(0.05, 0.95, 6, dtype=torch.float64, device=triton_device)
    masks, may = random_masks(vocab, 6, vocab, triton_device)
    expected = sample(by_hand(logits, may), params, uniform, implementation="triton")
    actual = sample(logits, params, uniform, masks, implementation="triton")
    assert torch.equal(actual[0], expected[0])
    assert torch.equal(actual[1], expected[1])
