"""Choosing tokens with the CPU kernels."""

from __future__ import annotations

import ctypes
import threading

import torch
from torch import Tensor

from plimsoll_kernels.cpu.huge_pages import Buffer
from plimsoll_kernels.cpu.library import KernelsRecord, SamplingRecord
from plimsoll_kernels.sampling.params import RowParams


class _Memory(threading.local):
    """What the calls of one thread work in."""

    def __init__(self) -> None:
        self.buffer = Buffer()


_memory = _Memory()


def sample_rows(kernels: KernelsRecord, logits: Tensor, params: RowParams, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """The largest logit of each row, float32 `[R]`, and the chosen tokens, int64 `[R]` (checked by sampling/op.py)."""
    rows, width = logits.shape
    best, tokens = torch.empty(rows), torch.empty(rows, dtype=torch.int64)
    threads = torch.get_num_threads()
    batch = SamplingRecord(
        rows,
        width,
        logits.stride(0),
        *(
            tensor.data_ptr()
            for tensor in (logits, params.temperature, params.top_k, params.top_p, params.min_p, uniform, best, tokens)
        ),
        _memory.buffer.pointer(kernels.sampling_workspace(width, threads)),
    )
    kernels.sample(ctypes.byref(batch), threads)
    return best, tokens
