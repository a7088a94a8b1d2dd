"""Grouped linear layers against one product for each row."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from plimsoll_runtime.models.layers import linear
from plimsoll_runtime.models.layers.linear import (
    EachLinear,
    GroupedLinear,
    Groups,
    KernelLinear,
    StackedLinear,
    grouped_linear,
)

COUNT, INPUTS, OUTPUTS = 6, 16, 24
WEIGHTS = torch.randn(COUNT, OUTPUTS, INPUTS, generator=torch.Generator().manual_seed(0))
BIASES = torch.randn(COUNT, OUTPUTS, generator=torch.Generator().manual_seed(1))
FORMS: dict[str, Callable[..., GroupedLinear]] = {
    "each": EachLinear,
    "stacked": lambda weights, biases=(): StackedLinear(weights, COUNT, biases),
}


def choice(seed: int, rows: int, each: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return states, and the groups and weights of each row."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.rand(rows, COUNT, generator=generator).argsort(dim=1)[:, :each]
    return torch.randn(rows, INPUTS, generator=generator), order, torch.rand(rows, each, generator=generator)


@pytest.mark.matrix(2)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@given(seed=st.integers(0, 2**31), rows=st.integers(1, 12), each=st.integers(1, COUNT), biased=st.booleans())
def test_each_row_meets_the_matrices_of_its_groups(
    form: str, dtype: torch.dtype, seed: int, rows: int, each: int, biased: bool
) -> None:
    x, chosen, weights = choice(seed, rows, each)
    x = x.to(dtype)
    product = FORMS[form](iter(WEIGHTS.to(dtype)), list(BIASES) if biased else [])
    groups = Groups(chosen, COUNT)
    found = groups.summed(product(groups.taken(x), groups), weights)
    each_one = torch.einsum("tkoi,ti->tko", WEIGHTS.to(dtype).float()[chosen], x.float())
    expected = torch.einsum("tk,tko->to", weights, each_one + BIASES[chosen] * biased)
    assert found.dtype is dtype
    torch.testing.assert_close(found.float(), expected, rtol=1e-4, atol=1e-4 if dtype is torch.float32 else 0.2)


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**31), rows=st.integers(1, 12), each=st.integers(1, COUNT), biased=st.booleans())
def test_our_kernel_does_the_same(triton_device: str, seed: int, rows: int, each: int, biased: bool) -> None:
    x, chosen, weights = (tensor.to(triton_device) for tensor in choice(seed, rows, each))
    biases = list(BIASES.to(triton_device)) if biased else []
    product = grouped_linear(iter(WEIGHTS.to(triton_device)), COUNT, biases, implementation="triton")
    assert isinstance(product, KernelLinear)
    groups = Groups(chosen, COUNT)
    found = groups.summed(product(groups.taken(x), groups), weights).cpu()
    plain = Groups(chosen.cpu(), COUNT)
    expected = EachLinear(iter(WEIGHTS), list(BIASES) if biased else [])(plain.taken(x.cpu()), plain)
    torch.testing.assert_close(found, plain.summed(expected, weights.cpu()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("width", [16, 15], ids=["aligned", "odd"])
def test_our_kernel_is_taken_where_it_runs(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr(linear, "use_triton", lambda wanted, tensor: wanted == "auto")
    assert isinstance(grouped_linear(iter(torch.zeros(2, 8, width)), 2), KernelLinear)
    monkeypatch.setattr(linear, "use_triton", lambda wanted, tensor: False)
    assert isinstance(grouped_linear(iter(torch.zeros(2, 8, width)), 2), EachLinear)


def test_inputs_are_weighed_in_the_order_in_which_they_are_taken() -> None:
    x, chosen, weights = choice(3, 5, 2)
    groups = Groups(chosen, COUNT)
    expected = (x[:, None] * weights[..., None]).flatten(0, 1)
    found = groups.taken(x) * groups.of_rows(weights)
    assert sorted(map(tuple, found.tolist())) == sorted(map(tuple, expected.tolist()))


def test_spans_leave_out_groups_without_rows() -> None:
    groups = Groups(torch.tensor([[4, 1], [1, 5]]), COUNT)
    assert groups.spans == [(1, 0, 2), (4, 2, 3), (5, 3, 4)]
    assert groups.ends.tolist() == [0, 2, 2, 2, 3, 4]
    assert groups.ends.dtype is torch.int32


def test_groups_that_nobody_chose_are_not_read() -> None:
    """The matrices of unused groups are NaN, which must not show in the result."""
    poisoned = WEIGHTS.clone()
    poisoned[[0, 2, 3]] = float("nan")
    x, _, weights = choice(1, 2, 2)
    groups = Groups(torch.tensor([[4, 1], [1, 5]]), COUNT)
    for form in FORMS.values():
        assert not groups.summed(form(iter(poisoned))(groups.taken(x), groups), weights).isnan().any()


@pytest.mark.skipif(not torch._C._has_mkldnn, reason="torch packs no matrices here")
def test_matrices_are_asked_for_one_by_one() -> None:
    """Each matrix is freed before the next is made: a layer's plain matrices never all exist next to their packed
    form.
    """
    alive: list[int] = []

    def made() -> Iterator[Tensor]:
        for number in range(COUNT):
            weight = WEIGHTS[number].clone()
            alive.append(number)
            weakref.finalize(weight, alive.remove, number)
            yield weight
            del weight
            assert len(alive) <= 2

    product = grouped_linear(made(), COUNT)
    assert isinstance(product, EachLinear)
    groups = Groups(torch.tensor([[0]]), COUNT)
    assert product(torch.ones(1, INPUTS), groups).shape == (1, OUTPUTS)
