"""Log probabilities: checks arguments, then runs the C++ kernel on a CPU and torch elsewhere."""

from __future__ import annotations

import torch
from torch import Tensor

from plimsoll_kernels.cpu.library import kernels
from plimsoll_kernels.cpu.sampling import report_rows
from plimsoll_kernels.dispatch import check_shape
from plimsoll_kernels.log_probabilities.reference import log_probabilities_reference
from plimsoll_kernels.log_probabilities.reports import Reports


def log_probabilities(logits: Tensor, tokens: Tensor, alternatives: Tensor, most: int) -> Reports:
    """Return the log probabilities of each row's token and of its `alternatives[i]` most likely tokens.

    logits float32 `[R, V]` with contiguous rows, tokens int64 `[R]`, alternatives int32 `[R]`, none above `most`, which
    is at most V. Raises ValueError for wrong shapes and dtypes.
    """
    if logits.dim() != 2 or logits.dtype is not torch.float32 or logits.stride(-1) != 1:
        raise ValueError(f"logits must be float32 [R, V] with contiguous rows, got {logits.dtype} {list(logits.shape)}")
    rows, vocab = logits.shape
    if not vocab or not 0 <= most <= vocab:
        raise ValueError(f"cannot report {most} alternatives of a vocabulary of {vocab} tokens")
    check_shape("tokens", tokens, rows)
    check_shape("alternatives", alternatives, rows)
    if tokens.dtype is not torch.int64 or alternatives.dtype is not torch.int32:
        raise ValueError(f"tokens must be int64 and alternatives int32, got {tokens.dtype} and {alternatives.dtype}")
    found = kernels(torch.float32) if logits.device.type == "cpu" else None
    if found is None:
        return log_probabilities_reference(logits, tokens, alternatives, most)
    return report_rows(found, logits, tokens.contiguous(), alternatives.contiguous(), most)
