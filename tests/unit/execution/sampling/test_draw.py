"""Drawn tokens follow the distribution that the parameters describe."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plimsoll_runtime.execution.sampling.draw import DrawParams, draw
from plimsoll_runtime.execution.sampling.noise import uniforms

DRAWS = 20_000


def params(
    rows: int, vocab: int, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> DrawParams:
    return DrawParams(
        temperature=torch.full((rows,), temperature),
        top_k=torch.full((rows,), top_k or vocab, dtype=torch.int64),
        top_p=torch.full((rows,), top_p),
        min_p=torch.full((rows,), min_p),
        filtered=bool(top_k) or top_p < 1.0,
        floored=min_p > 0.0,
        max_top_k=top_k,
    )


def oracle(logits: torch.Tensor, *, temperature: float, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    """The distribution by the definition, one row, float64: sort, cut, renormalise."""
    weights = torch.softmax(logits.double() / temperature, dim=-1)
    order = torch.argsort(weights, descending=True, stable=True)
    kept = order[: top_k or len(order)]
    mass = weights[kept] / weights[kept].sum()
    before = mass.cumsum(0) - mass
    kept = kept[(before < top_p) | (torch.arange(len(kept)) == 0)] if top_p < 1.0 else kept
    kept = kept[weights[kept] >= weights.max() * min_p]
    out = torch.zeros_like(weights)
    out[kept] = weights[kept] / weights[kept].sum()
    return out


def empirical(logits: torch.Tensor, drawn: DrawParams) -> torch.Tensor:
    noise = uniforms(np.full(DRAWS, 7, dtype=np.int64), np.arange(DRAWS, dtype=np.int64))
    tokens = draw(logits.expand(DRAWS, -1).contiguous(), drawn, torch.from_numpy(noise))
    return torch.bincount(tokens, minlength=logits.shape[-1]).double() / DRAWS


@pytest.mark.parametrize(
    "settings_",
    [
        {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
        {"temperature": 0.7, "top_k": 5, "top_p": 1.0, "min_p": 0.0},
        {"temperature": 1.3, "top_k": 0, "top_p": 0.8, "min_p": 0.0},
        {"temperature": 1.0, "top_k": 9, "top_p": 0.6, "min_p": 0.0},
        {"temperature": 2.0, "top_k": 0, "top_p": 1.0, "min_p": 0.2},
        {"temperature": 1.5, "top_k": 12, "top_p": 0.9, "min_p": 0.05},
    ],
)
def test_frequencies_match_the_definition(settings_: dict[str, float]) -> None:
    logits = torch.randn(40, generator=torch.Generator().manual_seed(3)) * 2
    expected = oracle(logits, **settings_)  # type: ignore[arg-type]
    observed = empirical(logits, params(DRAWS, 40, **settings_))  # type: ignore[arg-type]
    assert observed[expected == 0].sum() == 0
    kept = expected > 0
    chi_square = DRAWS * ((observed - expected)[kept] ** 2 / expected[kept]).sum()
    degrees = int(kept.sum()) - 1
    assert chi_square < degrees + 4 * (2 * degrees) ** 0.5 + 4


@given(
    seed=st.integers(0, 10_000),
    vocab=st.integers(2, 3000),
    top_k=st.integers(0, 2500),
    top_p=st.floats(0.05, 1.0),
    min_p=st.floats(0.0, 0.5),
    scale=st.sampled_from([0.01, 1.0, 8.0]),
)
@settings(max_examples=60, deadline=None)
def test_no_token_outside_the_filters_and_flat_rows_too(
    seed: int, vocab: int, top_k: int, top_p: float, min_p: float, scale: float
) -> None:
    """Vocabularies beyond the shortlist and flat distributions take the path of the full sort."""
    top_k = min(top_k, vocab)
    logits = torch.randn(vocab, generator=torch.Generator().manual_seed(seed)) * scale
    expected = oracle(logits, temperature=1.0, top_k=top_k, top_p=top_p, min_p=min_p)
    noise = torch.from_numpy(uniforms(np.full(64, seed, dtype=np.int64), np.arange(64, dtype=np.int64)))
    tokens = draw(logits.expand(64, -1).contiguous(), params(64, vocab, top_k=top_k, top_p=top_p, min_p=min_p), noise)
    plain = torch.softmax(logits, -1)
    tie_at_the_border = plain[tokens] > 0.999 * plain[expected > 0].min()
    assert bool(((expected[tokens] > 0) | tie_at_the_border).all())


def test_each_row_obeys_its_own_parameters() -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(5))
    mixed = DrawParams(
        temperature=torch.tensor([1.0, 1.0, 1.0]),
        top_k=torch.tensor([1, 50, 50]),
        top_p=torch.tensor([1.0, 1e-6, 1.0]),
        min_p=torch.tensor([0.0, 0.0, 1.0]),
        filtered=True,
        floored=True,
        max_top_k=1,
    )
    tokens = draw(logits, mixed, torch.tensor([0.999, 0.999, 0.999], dtype=torch.float64))
    assert tokens.tolist() == logits.argmax(-1).tolist()


@pytest.mark.parametrize("uniform", [0.0, 1.0 - 2.0**-53])
def test_extreme_uniforms_never_pick_a_token_of_weight_zero(uniform: float) -> None:
    logits = torch.full((1, 1500), -torch.inf)
    logits[0, [3, 700]] = 0.0
    token = draw(logits, params(1, 1500), torch.tensor([uniform], dtype=torch.float64))
    assert token.item() == (3 if uniform == 0.0 else 700)


def test_uniforms_are_uniform_and_independent_of_order() -> None:
    seeds, indices = np.arange(200).repeat(100), np.tile(np.arange(100), 200)
    values = uniforms(seeds, indices)
    histogram, _ = np.histogram(values, bins=20, range=(0, 1))
    expected = len(values) / 20
    assert ((histogram - expected) ** 2 / expected).sum() < 19 + 4 * 38**0.5
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.03
    permuted = np.random.default_rng(0).permutation(len(values))
    assert (uniforms(seeds[permuted], indices[permuted]) == values[permuted]).all()
