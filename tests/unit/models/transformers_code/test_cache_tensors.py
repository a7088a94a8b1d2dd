"""Joining and splitting Transformers' cache objects gives the caches that single rows would have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, GemmaConfig, MambaConfig

from plimsoll_runtime.models.transformers_code.cache_tensors import (
    Misfit,
    atoms_of,
    axes_of,
    joined,
    taken,
    tensors_of,
    with_tensors,
)


def attended(rows: Tensor, layers: int = 2) -> Any:
    """Return a cache of keys and values of rows [B, T]."""
    cache = DynamicCache()
    for layer in range(layers):
        heads = rows[:, None, :, None].expand(-1, 2, -1, 4) + layer
        cache.update(heads.float(), -heads.float(), layer)
    return cache


def remembered(rows: Tensor) -> Any:
    """Return a cache of a recurrent model's states."""
    cache = DynamicCache(config=MambaConfig(num_hidden_layers=1, hidden_size=4))
    cache.update_conv_state(rows[:, None, :].expand(-1, 8, -1).float(), 0)
    cache.update_recurrent_state(rows[:, None, -3:].expand(-1, 8, -1).float().clone(), 0)
    return cache


def listed(rows: Tensor) -> Any:
    """Return states in a list, with rows last in one of them, and a number of no row."""
    return [rows.float(), rows.T.clone(), (torch.tensor(rows.shape[1]), {"count": rows.shape[1]})]


ROWS = torch.arange(15).view(3, 5)
KINDS = pytest.mark.parametrize("made", [attended, remembered, listed], ids=lambda made: made.__name__)
Made = Callable[[Tensor], Any]


def same(one: Any, other: Any) -> None:
    assert atoms_of(one) == atoms_of(other)
    mine, theirs = tensors_of(one), tensors_of(other)
    assert mine.keys() == theirs.keys()
    assert mine
    for path, tensor in mine.items():
        assert torch.equal(tensor, theirs[path]), path


@KINDS
def test_rows_joined_are_what_they_would_have_been_together(made: Made) -> None:
    axes = axes_of(made(ROWS[:1]), made(ROWS[:2]))
    whole = joined([made(ROWS[1:2]), made(ROWS[[2, 0]])], axes)
    same(whole, made(ROWS[[1, 2, 0]]))


@KINDS
def test_rows_taken_are_what_they_were_and_share_nothing(made: Made) -> None:
    axes = axes_of(made(ROWS[:1]), made(ROWS[:2]))
    whole = made(ROWS)
    some = taken(whole, [2, 0], 3, axes)
    same(some, made(ROWS[[2, 0]]))
    for tensor in tensors_of(some).values():
        tensor.zero_()
    same(whole, made(ROWS))


@KINDS
def test_caches_that_were_joined_are_let_go_of(made: Made) -> None:
    axes = axes_of(made(ROWS[:1]), made(ROWS[:2]))
    parts = [made(ROWS[:1]), made(ROWS[1:2])]
    joined(parts, axes)
    left = [path for part in parts for path in tensors_of(part) if axes[path] is not None]
    assert left == []


def test_a_copy_grows_by_itself() -> None:
    cache = attended(ROWS[:1])
    copy = with_tensors(cache, lambda _, tensor: tensor.clone())
    more = torch.ones(1, 2, 1, 4)
    copy.update(more, more, 0)
    assert (cache.get_seq_length(), copy.get_seq_length()) == (5, 6)


@pytest.mark.parametrize(
    "other",
    [attended(ROWS[:1], layers=3), attended(ROWS[:1, :4]), listed(ROWS[:1])],
    ids=["layers", "tokens", "kind"],
)
def test_what_is_not_of_one_form_is_not_joined(other: Any) -> None:
    axes = axes_of(attended(ROWS[:1]), attended(ROWS[:2]))
    with pytest.raises(Misfit):
        joined([attended(ROWS[:1]), other], axes)


def test_numbers_of_no_row_have_to_agree() -> None:
    axes = axes_of(listed(ROWS[:1]), listed(ROWS[:2]))
    parts = [listed(ROWS[:1]), listed(ROWS[1:2])]
    parts[1][2] = (torch.tensor(6), {"count": 5})
    with pytest.raises(Misfit):
        joined(parts, axes)


@pytest.mark.parametrize(
    "two", [[ROWS[:2].T.clone(), ROWS[:2]], [ROWS[:2]], [ROWS[:2], ROWS[:2].T[None]]], ids=["sizes", "count", "dims"]
)
def test_rows_that_lie_in_no_one_dimension(two: Any) -> None:
    with pytest.raises(Misfit):
        axes_of([ROWS[:1], ROWS[:1].T], two)


def test_a_config_is_neither_searched_nor_copied() -> None:
    config = GemmaConfig()
    cache = attended(ROWS[:1])
    cache.config = config
    assert with_tensors(cache, lambda _, tensor: tensor).config is config
    assert not any("config" in path for path in atoms_of(cache))
