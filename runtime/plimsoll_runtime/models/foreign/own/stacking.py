"""Caches of several rows as one, for one call, and one of several rows as some of them alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from plimsoll_runtime.models.foreign.own.tree import Path, atoms_of, forget, tensors_of, with_tensors

Axes = Mapping[Path, int | None]
"""By where a tensor lies in a cache, the dimension that rows lie along, one after the other; None: it is of no row."""


class Misfit(Exception):
    """Caches that are not of one form, so that no call can take their rows together."""


def axes_of(one: Any, two: Any) -> Axes:
    """From caches of one row and of two, of equally many tokens. Raises Misfit where rows lie in no one dimension."""
    alone, both = tensors_of(one), tensors_of(two)
    if alone.keys() != both.keys() or atoms_of(one) != atoms_of(two):
        raise Misfit
    return {path: _axis(tensor, both[path]) for path, tensor in alone.items()}


def _axis(one: Tensor, two: Tensor) -> int | None:
    if one.shape == two.shape:
        return None
    if one.dim() != two.dim():
        raise Misfit
    found = [i for i, (a, b) in enumerate(zip(one.shape, two.shape, strict=True)) if a != b]
    if len(found) != 1 or two.shape[found[0]] != 2 * one.shape[found[0]]:
        raise Misfit
    return found[0]


def joined(caches: Sequence[Any], axes: Axes) -> Any:
    """One cache of the rows of all, in order; they are used up. Raises Misfit where they are not of one form."""
    first, *others = caches
    every = [tensors_of(cache) for cache in caches]
    atoms = atoms_of(first)
    for cache, tensors in zip(others, every[1:], strict=True):
        if tensors.keys() != every[0].keys() or atoms_of(cache) != atoms:
            raise Misfit
    for path, tensor in every[0].items():
        _check(path, tensor, [tensors[path] for tensors in every[1:]], axes)

    def together(path: Path, tensor: Tensor) -> Tensor:
        axis = axes[path]
        if axis is None:
            return tensor.clone()
        whole = torch.cat([tensors.pop(path) for tensors in every], axis)
        for cache in caches:
            forget(cache, path)
        return whole

    return with_tensors(first, together)


def _check(path: Path, first: Tensor, others: Sequence[Tensor], axes: Axes) -> None:
    if path not in axes:
        raise Misfit
    axis = axes[path]
    for other in others:
        if axis is None and not torch.equal(other, first):
            raise Misfit
        if axis is not None and _without(other, axis) != _without(first, axis):
            raise Misfit


def _without(tensor: Tensor, axis: int) -> tuple[int, ...]:
    return (*tensor.shape[:axis], *tensor.shape[axis + 1 :])


def taken(cache: Any, rows: Sequence[int], count: int, axes: Axes) -> Any:
    """A cache of some of its `count` rows, in this order, which shares no memory with it."""

    def some(path: Path, tensor: Tensor) -> Tensor:
        axis = axes[path]
        if axis is None:
            return tensor.clone()
        parts = tensor.chunk(count, axis)
        return torch.cat([parts[row] for row in rows], axis)

    return with_tensors(cache, some)
