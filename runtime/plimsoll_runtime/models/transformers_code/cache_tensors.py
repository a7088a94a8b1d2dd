"""Finds and replaces tensors of Transformers' cache objects, joins batch rows of several objects, and selects rows."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

import torch
from torch import Tensor

Path = tuple[Any, ...]
"""Names, keys and indices from the cache object to a tensor."""

_THEIRS = "transformers."
_NOT_OPENED = ("transformers.configuration_utils", "transformers.modeling_utils")


def tensors_of(cache: Any) -> dict[Path, Tensor]:
    """Return the tensors of a cache by path."""
    return dict(_tensors(cache, ()))


def atoms_of(cache: Any) -> dict[Path, Any]:
    """Return the values of a cache that are not tensors (lengths, flags), by path. Rows of one call must agree on
    these.
    """
    return dict(_atoms(cache, ()))


def with_tensors(cache: Any, tensor_of: Callable[[Path, Tensor], Tensor]) -> Any:
    """Return a copy of a cache, with each tensor replaced by the result of `tensor_of`."""
    return _copied(cache, (), tensor_of)


def forget(cache: Any, path: Path) -> None:
    """Drop the reference to a tensor in a cache that is not used again, if its container is mutable."""
    *way, last = path
    for name in way:
        cache = getattr(cache, name) if _is_theirs(cache) else cache[name]
    if _is_theirs(cache):
        setattr(cache, last, None)
    elif not isinstance(cache, tuple):
        cache[last] = None


def _parts(value: Any) -> list[tuple[Any, Any]] | None:
    """Return the items of a container by name, key or index; None for other values."""
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, list | tuple):
        return list(enumerate(value))
    if _is_theirs(value):
        return list(vars(value).items())
    return None


def _is_theirs(value: Any) -> bool:
    """Return whether a value is a Transformers object that may hold tensors: a cache or a cache layer, not a config or
    model.
    """
    kind = type(value)
    opened = kind.__module__.startswith(_THEIRS) and not isinstance(value, type | Enum) and hasattr(value, "__dict__")
    return opened and not any(base.__module__ in _NOT_OPENED for base in kind.__mro__)


def _tensors(value: Any, path: Path) -> Iterator[tuple[Path, Tensor]]:
    if isinstance(value, Tensor):
        yield path, value
        return
    for name, part in _parts(value) or ():
        yield from _tensors(part, (*path, name))


def _atoms(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    parts = _parts(value)
    if isinstance(value, Tensor):
        return
    if parts is None:
        if value is None or isinstance(value, bool | int | float | str):
            yield path, value
        return
    for name, part in parts:
        yield from _atoms(part, (*path, name))


def _copied(value: Any, path: Path, tensor_of: Callable[[Path, Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return tensor_of(path, value)
    parts = _parts(value)
    if parts is None:
        return value
    made = [(name, _copied(part, (*path, name), tensor_of)) for name, part in parts]
    if isinstance(value, list):
        return [part for _, part in made]
    if isinstance(value, tuple):
        return type(value)(*(p for _, p in made)) if hasattr(value, "_fields") else tuple(p for _, p in made)
    found = copy.copy(value)
    if isinstance(value, dict):
        found.update(made)
    else:
        vars(found).update(made)
    return found


Axes = Mapping[Path, int | None]
"""For each tensor's path, its batch dimension, along which rows are concatenated; None: it is the same for all rows."""


class Misfit(Exception):
    """Caches have different forms, so that no call can take their rows together."""


def axes_of(one: Any, two: Any) -> Axes:
    """Return the batch dimensions, found by comparing caches of one row and of two, with equally many tokens.

    A tensor of equal shape in both has none. Raises Misfit if the caches differ otherwise than by doubling a dimension.
    """
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
    """Return one cache with the rows of all, in order. The given caches must not be used again.

    Raises Misfit if their forms differ.
    """
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
    """Return a cache with `rows` of the `count` rows, in this order. It shares no memory with the given cache."""

    def some(path: Path, tensor: Tensor) -> Tensor:
        axis = axes[path]
        if axis is None:
            return tensor.clone()
        parts = tensor.chunk(count, axis)
        return torch.cat([parts[row] for row in rows], axis)

    return with_tensors(cache, some)
