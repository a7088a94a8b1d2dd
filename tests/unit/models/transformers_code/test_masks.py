"""The window of a mask."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.masking_utils import (
    and_masks,
    bidirectional_mask_function,
    causal_mask_function,
    chunked_causal_mask_function,
    sliding_window_causal_mask_function,
)

from plimsoll_runtime.models.transformers_code.model_classes import UnservedError
from plimsoll_runtime.models.transformers_code.probe import FAR, Masks, window_of


def test_all_before_it() -> None:
    assert window_of(causal_mask_function) is None


@settings(max_examples=20, deadline=None)
@given(st.integers(1, FAR - 40))
def test_a_window(size: int) -> None:
    assert window_of(sliding_window_causal_mask_function(size)) == size


def test_later_tokens() -> None:
    with pytest.raises(UnservedError, match="neither causal nor a sliding window"):
        window_of(bidirectional_mask_function)


@pytest.mark.parametrize("size", [2, 16, 8192])
def test_chunks(size: int) -> None:
    with pytest.raises(UnservedError, match="chunked"):
        window_of(chunked_causal_mask_function(size, torch.zeros(1, dtype=torch.int64)))


def test_holes() -> None:
    def even(batch: Tensor, head: Tensor, row: Tensor, token: Tensor) -> Tensor:
        return token % 2 == row % 2

    with pytest.raises(UnservedError, match="neither causal nor a sliding window"):
        window_of(and_masks(causal_mask_function, even))


def test_a_mask_is_known_by_its_memory() -> None:
    masks = Masks()
    made = [
        masks.make(batch_size=1, q_length=3, kv_length=3, mask_function=function)
        for function in (causal_mask_function, sliding_window_causal_mask_function(2))
    ]
    assert [masks.window(mask) for mask in made] == [None, 2]
    assert masks.window(made[1][:, :, :, :2]) == 2
    with pytest.raises(UnservedError, match="its own masks"):
        masks.window(made[1].clone())
    with pytest.raises(UnservedError, match="without a mask"):
        masks.window(None)
