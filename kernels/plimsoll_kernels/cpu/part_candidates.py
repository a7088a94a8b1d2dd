"""`Candidates` of the C++ kernels."""

from __future__ import annotations

import ctypes
import threading

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from plimsoll_kernels.cpu.huge_pages import Buffer
from plimsoll_kernels.cpu.records import CandidatesRecord, KernelsRecord, Stage
from plimsoll_kernels.cpu.threads import thread_count

MAXIMA = 64
"""Tokens of a group with a maximum of its own (GROUP in source/logits_row.h)."""


class _Memory(threading.local):
    """Scratch memory of one thread's calls."""

    def __init__(self) -> None:
        self.buffer = Buffer()


_memory = _Memory()


class KernelCandidates:
    """`Candidates` of one kernel, which is called for each stage. See sampling/part_candidates.py."""

    def __init__(self, kernels: KernelsRecord, logits: Tensor, counts: NDArray[np.int32]) -> None:
        rows, width = logits.shape
        most = int(counts.max(initial=0))
        self._kernels = kernels
        self._logits = logits
        self._counts = np.ascontiguousarray(counts, dtype=np.int32)
        self._maxima = np.empty((rows, -(-width // MAXIMA)), dtype=np.float32)
        self.best = np.empty(rows, dtype=np.float32)
        self.tokens = np.empty(rows, dtype=np.int64)
        self.values = np.empty((rows, most), dtype=np.float32)
        self.listed = np.empty((rows, most), dtype=np.int32)
        self._weighed: tuple[NDArray[np.float32], ...] = ()
        self._call(Stage.LIST, self.tokens)

    def weigh(
        self,
        temperature: NDArray[np.float32],
        min_p: NDArray[np.float32],
        largest: NDArray[np.float32],
        bound: NDArray[np.float32],
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        given = (temperature, min_p, largest, bound)
        self._weighed = tuple(np.ascontiguousarray(each, dtype=np.float32) for each in given)
        mass, above = np.zeros(len(self._counts)), np.zeros(len(self._counts))
        self._call(Stage.WEIGH, self.tokens, mass, above)
        return mass, above

    def find(self, target: NDArray[np.float64]) -> NDArray[np.int64]:
        found = np.zeros(len(self._counts), dtype=np.int64)
        self._call(Stage.FIND, found, target=np.ascontiguousarray(target, dtype=np.float64))
        return found

    def _call(
        self,
        stage: Stage,
        tokens: NDArray[np.int64],
        mass: NDArray[np.float64] | None = None,
        above: NDArray[np.float64] | None = None,
        target: NDArray[np.float64] | None = None,
    ) -> None:
        rows, width = self._logits.shape
        threads = thread_count()
        given: list[int | None] = [each.ctypes.data for each in self._weighed] or [None] * 4
        batch = CandidatesRecord(
            stage=stage,
            rows=rows,
            width=width,
            stride=self._logits.stride(0),
            most=self.values.shape[1],
            logits=self._logits.data_ptr(),
            maxima=self._maxima.ctypes.data,
            counts=self._counts.ctypes.data,
            best=self.best.ctypes.data,
            tokens=tokens.ctypes.data,
            values=self.values.ctypes.data,
            listed=self.listed.ctypes.data,
            temperature=given[0],
            min_p=given[1],
            largest=given[2],
            bound=given[3],
            mass=None if mass is None else mass.ctypes.data,
            above=None if above is None else above.ctypes.data,
            target=None if target is None else target.ctypes.data,
            workspace=_memory.buffer.pointer(self._kernels.sampling_workspace(width, threads)),
        )
        self._kernels.candidates(ctypes.byref(batch), threads)
