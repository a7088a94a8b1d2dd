"""A whole decoder's step in one C++ call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from plimsoll_kernels.cpu.exchange import ExchangeError
from plimsoll_kernels.cpu.huge_pages import Buffer
from plimsoll_kernels.cpu.records import MAX_PLACES, KernelsRecord, ModelRecord, OpRecord, PlaceRecord, Timed
from plimsoll_kernels.cpu.step import PagedStep, pointers
from plimsoll_kernels.cpu.threads import thread_count


class CpuDecoder:
    """Computes hidden states of token ids: all ops in one call, which does not hold Python's GIL.

    `kept`: the owners of the memory that the ops point to. `width`: of the hidden states.
    """

    def __init__(
        self,
        kernels: KernelsRecord,
        ops: Sequence[OpRecord],
        places: Sequence[PlaceRecord],
        *,
        width: int,
        dtype: torch.dtype,
        kept: Sequence[object],
    ) -> None:
        if len(places) > MAX_PLACES:
            raise ValueError(
                f"the model needs {len(places)} buffers for intermediate values; the CPU kernels support {MAX_PLACES}"
            )
        self._kernels = kernels
        self._kept = kept
        self._dtype = dtype
        self._hidden = width
        self._workspace = Buffer()
        self._seconds = (ctypes.c_double * len(Timed))()
        self._model = ModelRecord(
            ops=(OpRecord * len(ops))(*ops),
            places=(PlaceRecord * len(places))(*places),
            num_ops=len(ops),
            num_places=len(places),
        )

    def __call__(
        self,
        token_ids: Tensor,
        positions: Tensor,
        turns: Sequence[Tensor],
        step: PagedStep,
        incoming: Tensor | None = None,
        outgoing: Tensor | None = None,
    ) -> Tensor:
        """Return the hidden states `[T, hidden]` of token_ids at positions, both int64 `[T]`.

        turns: for each rotary embedding float32 `[P, 2, D / 2]`, cosines and sines of the positions below P. incoming,
        outgoing: float32 `[T, columns]`, the values that a stage of a pipeline reads and writes; with `outgoing` there
        are no hidden states, and the result is empty. Raises ExchangeError if a sum over ranks fails.
        """
        rows, threads = token_ids.numel(), thread_count()
        hidden = torch.empty(rows if outgoing is None else 0, self._hidden, dtype=self._dtype)
        record = step.record
        record.tokens = token_ids.data_ptr()
        record.positions, record.turns = positions.data_ptr(), pointers(turns)
        record.hidden = hidden.data_ptr()
        if incoming is not None:
            record.incoming = incoming.data_ptr()
        if outgoing is not None:
            record.outgoing = outgoing.data_ptr()
        record.workspace = self._workspace.pointer(self._kernels.workspace(ctypes.byref(self._model), rows, threads))
        record.seconds = self._seconds
        failed = self._kernels.forward(
            ctypes.byref(self._model), ctypes.byref(step.cache.record), ctypes.byref(record), threads
        )
        if failed:
            raise ExchangeError.of(self._model.ops[failed - 1].reduce.exchange)
        return hidden

    def step_bytes(self, rows: int) -> int:
        """Return the bytes that a call with `rows` rows allocates: its workspace, which stays, and its result."""
        workspace = self._kernels.workspace(ctypes.byref(self._model), rows, thread_count())
        return Buffer.nbytes(workspace) + rows * self._hidden * self._dtype.itemsize

    def take_seconds(self) -> dict[str, float]:
        """Return the seconds by kind of op since the last call."""
        taken = {timed.name.lower(): seconds for timed, seconds in zip(Timed, self._seconds, strict=True)}
        for index in range(len(Timed)):
            self._seconds[index] = 0.0
        return taken
