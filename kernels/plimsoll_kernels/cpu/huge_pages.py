"""Memory on huge pages, where the kernel has them.

Weights stream by and blocks of a cache lie anywhere: on pages of 4 KiB each of them costs address translations, which
are dearer still in a virtual machine (attention over scattered blocks was measured three times slower).
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence

import torch
from torch import Tensor

HUGE_PAGE = 2 << 20


def allocate(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Zeros of this shape; their pages are taken when they are first written."""
    count = math.prod(shape)
    size = count * dtype.itemsize
    if size < HUGE_PAGE:
        return torch.zeros(*shape, dtype=dtype)
    memory = mmap.mmap(-1, -(-size // HUGE_PAGE) * HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype, count=count).view(*shape)
