"""Sampling and log probabilities with the CPU kernels."""

from __future__ import annotations

import ctypes
import threading

import torch
from torch import Tensor

from plimsoll_kernels.cpu.huge_pages import Buffer
from plimsoll_kernels.cpu.records import KernelsRecord, ReportsRecord, SamplingRecord
from plimsoll_kernels.cpu.threads import thread_count
from plimsoll_kernels.log_probabilities.reports import Reports
from plimsoll_kernels.sampling.masks import TokenMasks
from plimsoll_kernels.sampling.params import RowParams


class _Memory(threading.local):
    """Scratch memory of one thread's calls."""

    def __init__(self) -> None:
        self.buffer = Buffer()


_memory = _Memory()


def sample_rows(
    kernels: KernelsRecord,
    logits: Tensor,
    params: RowParams,
    uniform: Tensor,
    masks: TokenMasks | None = None,
    mass: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the largest logit of each row, float32 `[R]`, and the sampled tokens, int64 `[R]`.

    sampling/op.py checks the arguments.
    """
    rows, width = logits.shape
    best, tokens = torch.empty(rows), torch.empty(rows, dtype=torch.int64)
    threads = thread_count()
    batch = SamplingRecord(
        rows=rows,
        width=width,
        stride=logits.stride(0),
        logits=logits.data_ptr(),
        temperature=params.temperature.data_ptr(),
        top_k=params.top_k.data_ptr(),
        top_p=params.top_p.data_ptr(),
        min_p=params.min_p.data_ptr(),
        uniform=uniform.data_ptr(),
        mass=None if mass is None else mass.data_ptr(),
        masked=None if masks is None else masks.masked.data_ptr(),
        masks=None if masks is None else masks.bits.data_ptr(),
        best=best.data_ptr(),
        tokens=tokens.data_ptr(),
        workspace=_memory.buffer.pointer(kernels.sampling_workspace(width, threads)),
    )
    kernels.sample(ctypes.byref(batch), threads)
    return best, tokens


def report_rows(kernels: KernelsRecord, logits: Tensor, tokens: Tensor, alternatives: Tensor, most: int) -> Reports:
    """Return log probabilities of the tokens and of the most likely ones (log_probabilities/op.py checks the
    arguments).
    """
    rows, width = logits.shape
    found = Reports(
        chosen=torch.empty(rows),
        ranks=torch.empty(rows, dtype=torch.int64),
        top_tokens=torch.empty(rows, most, dtype=torch.int64),
        top=torch.empty(rows, most),
    )
    threads = thread_count()
    batch = ReportsRecord(
        rows=rows,
        width=width,
        stride=logits.stride(0),
        logits=logits.data_ptr(),
        tokens=tokens.data_ptr(),
        alternatives=alternatives.data_ptr(),
        most=most,
        chosen=found.chosen.data_ptr(),
        ranks=found.ranks.data_ptr(),
        top_tokens=found.top_tokens.data_ptr(),
        top=found.top.data_ptr(),
        workspace=_memory.buffer.pointer(kernels.sampling_workspace(width, threads)),
    )
    kernels.report(ctypes.byref(batch), threads)
    return found
