"""Log probabilities equal float64 ones; ranks and the most likely tokens are exact for any logits."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_support.instructions import SETS
from sampling_support.logits import SHAPES, shaped
from torch import Tensor

from plimsoll_kernels.cpu.sampling import report_rows
from plimsoll_kernels.log_probabilities.op import log_probabilities
from plimsoll_kernels.log_probabilities.reference import log_probabilities_reference
from plimsoll_kernels.log_probabilities.reports import Reports

Report = Callable[[Tensor, Tensor, Tensor, int], Reports]


@pytest.fixture(scope="session", params=["reference", *SETS], ids=str)
def report(request: pytest.FixtureRequest) -> Report:
    """The reference, and the kernels of each instruction set."""
    if request.param == "reference":
        return log_probabilities_reference
    return partial(report_rows, request.param.kernels())


def check(found: Reports, logits: Tensor, tokens: Tensor, wanted: list[int]) -> None:
    exact = torch.log_softmax(logits.double(), -1)
    order = torch.sort(logits, dim=-1, descending=True, stable=True).indices
    torch.testing.assert_close(found.chosen.double(), exact.gather(-1, tokens[:, None])[:, 0], rtol=1e-5, atol=2e-5)
    assert found.ranks.tolist() == [1 + int((row > row[t]).sum()) for row, t in zip(logits, tokens, strict=True)]
    for row, count in enumerate(wanted):
        assert torch.equal(found.top_tokens[row, :count], order[row, :count])
        expected = exact[row, order[row, :count]]
        torch.testing.assert_close(found.top[row, :count].double(), expected, rtol=1e-5, atol=2e-5)


@pytest.mark.matrix(2)
@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 2**32), vocab=st.integers(1, 700), data=st.data())
def test_any_rows(report: Report, seed: int, vocab: int, data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=4))
    logits = torch.stack([shaped(seed + i, vocab, shape) for i, shape in enumerate(rows)])
    tokens = torch.tensor([(seed + 7 * i) % vocab for i in range(len(rows))])
    wanted = [data.draw(st.integers(0, min(20, vocab))) for _ in rows]
    found = report(logits, tokens, torch.tensor(wanted, dtype=torch.int32), max(wanted))
    assert found.top.shape == found.top_tokens.shape == (len(rows), max(wanted))
    check(found, logits, tokens, wanted)


def test_a_large_vocabulary(report: Report) -> None:
    logits = torch.stack([shaped(i, 262_144, shape) for i, shape in enumerate(SHAPES)])
    tokens = logits.argmax(-1)
    tokens[1::2] = 12_345
    check(report(logits, tokens, torch.full((6,), 20, dtype=torch.int32), 20), logits, tokens, [20] * 6)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_that_is_not_finite_stays_alone(report: Report, bad: float) -> None:
    logits = torch.stack([shaped(i, 200, "peaked") for i in range(3)])
    tokens, wanted = torch.tensor([3, 5, 7]), torch.tensor([2, 2, 2], dtype=torch.int32)
    broken = logits.clone()
    broken[1, 150] = bad
    found = report(broken, tokens, wanted, 2)
    assert found.chosen[1].isnan()
    assert found.top[1].isnan().all()
    assert ((found.top_tokens >= 0) & (found.top_tokens < 200)).all()
    others = torch.tensor([0, 2])
    part = Reports(found.chosen[others], found.ranks[others], found.top_tokens[others], found.top[others])
    check(part, logits[others], tokens[others], [2, 2])


def test_refusals() -> None:
    logits, tokens, wanted = torch.zeros(2, 5), torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"contiguous rows, got torch\.float16"):
        log_probabilities(logits.half(), tokens, wanted, 0)
    with pytest.raises(ValueError, match="cannot report 6 alternatives of a vocabulary of 5 tokens"):
        log_probabilities(logits, tokens, wanted, 6)
    with pytest.raises(ValueError, match=r"tokens is \[1\], expected \[2\]"):
        log_probabilities(logits, tokens[:1], wanted, 0)
    with pytest.raises(ValueError, match="tokens must be int64 and alternatives int32"):
        log_probabilities(logits, wanted, wanted, 0)
