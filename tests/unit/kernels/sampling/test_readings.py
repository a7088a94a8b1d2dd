"""How often the kernels read logits, counted by the interpreter at each load."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sampling_support.definition import Wish, allowed, row_params
from sampling_support.logits import shaped

pytest.importorskip("triton")
from triton import knobs
from triton.runtime.interpreter import interpreter_builder

from plimsoll_kernels.sampling.op import sample
from plimsoll_kernels.sampling.scratch import TILE

pytestmark = pytest.mark.skipif(not knobs.runtime.interpret, reason="only the interpreter shows the loads")
VOCAB = 50_257
MARGIN = 2 * TILE / VOCAB
"""The tile of the largest logit, and that of the token."""
UNIFORM = 0.37


def readings(logits: torch.Tensor, wish: Wish, monkeypatch: pytest.MonkeyPatch) -> float:
    """Return how often logits `[V]` are read, on average; also checks the sampled token."""
    first, loaded = logits.data_ptr(), []
    plain = interpreter_builder.create_masked_load

    def counted(pointers: Any, mask: Any, *args: Any) -> Any:
        inside = (pointers.data >= first) & (pointers.data < first + logits.numel() * 4) & mask.data
        loaded.append(int(inside.sum()))
        return plain(pointers, mask, *args)

    with monkeypatch.context() as patch:
        patch.setattr(interpreter_builder, "create_masked_load", counted)
        uniform = torch.tensor([UNIFORM], dtype=torch.float64)
        _, tokens = sample(logits[None], row_params(wish), uniform, implementation="triton")
    assert tokens.item() in (allowed(logits, wish, UNIFORM) if wish.temperature else {int(logits.argmax())})
    return sum(loaded) / logits.numel()


def sure() -> torch.Tensor:
    """Return logits of a model that is confident of some 20 tokens."""
    logits = shaped(1, VOCAB, "sorted")[torch.randperm(VOCAB, generator=torch.Generator().manual_seed(2))] * 0.5
    logits[::2500] += 14
    return logits


@pytest.mark.matrix(2)
@pytest.mark.parametrize("wish", [Wish(0.0), Wish(1e5)], ids=str)
@pytest.mark.parametrize("shape", ["flat", "equal"])
def test_without_filters_once(wish: Wish, shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1 < readings(shaped(1, VOCAB, shape), wish, monkeypatch) <= 1 + MARGIN


@pytest.mark.matrix(2)
@pytest.mark.parametrize(
    "wish",
    [Wish(top_k=50), Wish(top_k=50, top_p=0.95), Wish(top_p=0.9), Wish(min_p=0.05), Wish(0.7, 20, 0.8, 0.1)],
    ids=str,
)
def test_a_sure_model_hardly_more_than_once(wish: Wish, monkeypatch: pytest.MonkeyPatch) -> None:
    assert readings(sure(), wish, monkeypatch) <= 1.35


@pytest.mark.long
@pytest.mark.parametrize("shape", ["flat", "equal", "steps", "outlier"])
@pytest.mark.parametrize(
    "wish", [Wish(top_k=50), Wish(top_p=0.9), Wish(100.0, top_p=0.5), Wish(1.0, VOCAB // 50, 0.9, 0.1)], ids=str
)
def test_any_filter_three_times_at_most(wish: Wish, shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    logits = shaped(1, VOCAB, "flat" if shape == "outlier" else shape)
    if shape == "outlier":
        logits[VOCAB // 2] = 4.0
    assert readings(logits, wish, monkeypatch) <= 3 + MARGIN
