"""A step's attention whose errors are told from the rest of a model's: they are a reason to try another backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from plimsoll_runtime.execution.attention.base import AttentionBackend, AttentionBatch
from plimsoll_runtime.execution.device.fault import FaultKind, fault_of
from plimsoll_runtime.execution.kv_cache import KvCache
from plimsoll_runtime.models.layers.attention import Attention, NormOfHeads, RotatingAttention

_Result = TypeVar("_Result")

OUT_OF_MEMORY = (MemoryError, torch.OutOfMemoryError)
"""Memory that is short would be short for any backend: these come out as they are."""


class AttentionError(Exception):
    """An attention backend failed, which (`backend`) and how; the cause is its own error."""

    def __init__(self, backend: str, error: Exception) -> None:
        super().__init__(f"the attention backend {backend} failed with {type(error).__name__}: {error}")
        self.backend = backend


def make(backend: type[AttentionBackend], cache: KvCache) -> AttentionBackend:
    """A backend over a cache. Raises AttentionError."""
    return _blamed(backend.name, backend, cache)


def begin(backend: AttentionBackend, batch: AttentionBatch) -> Attention:
    """A step of the backend, which raises AttentionError, as this does.

    Errors of a fused backend are not told apart: its decoder attends by itself, and no other backend's steps fit it.
    """
    if backend.fused:
        return backend.begin(batch)
    step = _blamed(backend.name, backend.begin, batch)
    return _RotatingStep(backend.name, step) if isinstance(step, RotatingAttention) else _Step(backend.name, step)


class _Step:
    """See Attention."""

    def __init__(self, backend: str, step: Attention) -> None:
        self._backend = backend
        self._step = step

    def __call__(
        self, layer: int, query: Tensor, key: Tensor | None, value: Tensor | None, sinks: Tensor | None = None
    ) -> Tensor:
        """See Attention."""
        return _blamed(self._backend, self._step, layer, query, key, value, sinks)


class _RotatingStep(_Step):
    """See RotatingAttention."""

    def __init__(self, backend: str, step: RotatingAttention) -> None:
        super().__init__(backend, step)
        self._of_heads = step.of_heads

    def of_heads(
        self,
        layer: int,
        heads: Tensor,
        cos: Tensor,
        sin: Tensor,
        norm: NormOfHeads | None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """See RotatingAttention."""
        return _blamed(self._backend, self._of_heads, layer, heads, cos, sin, norm, sinks)


def _blamed(backend: str, work: Callable[..., _Result], *args: Any) -> _Result:
    try:
        return work(*args)
    except (AttentionError, *OUT_OF_MEMORY):
        # One that is made of several says which of them it was.
        raise
    except Exception as error:
        # On a device that has failed, or is full, another backend would fail as well.
        if fault_of(error).kind is not FaultKind.OTHER:
            raise
        raise AttentionError(backend, error) from error
