"""All attention backends that can be selected, by name. What each supports is stated next to its code."""

from __future__ import annotations

from collections.abc import Mapping

from plimsoll_runtime.execution.attention.backends.cpu import CpuBackend
from plimsoll_runtime.execution.attention.backends.cudnn import CudnnBackend, CudnnPagedBackend
from plimsoll_runtime.execution.attention.backends.flash_attn import FlashAttn3Backend, FlashAttnBackend
from plimsoll_runtime.execution.attention.backends.flashinfer import FlashInferBackend
from plimsoll_runtime.execution.attention.backends.gather.backend import GatheredBackend
from plimsoll_runtime.execution.attention.backends.reference import ReferenceBackend
from plimsoll_runtime.execution.attention.backends.sdpa import SdpaBackend
from plimsoll_runtime.execution.attention.backends.torch_flash import TorchFlashBackend
from plimsoll_runtime.execution.attention.backends.triton import TritonBackend
from plimsoll_runtime.execution.attention.base import AttentionBackend

_ALL: tuple[type[AttentionBackend], ...] = (
    CpuBackend,
    GatheredBackend,
    TritonBackend,
    FlashInferBackend,
    FlashAttn3Backend,
    FlashAttnBackend,
    CudnnPagedBackend,
    CudnnBackend,
    TorchFlashBackend,
    SdpaBackend,
    ReferenceBackend,
)
BACKENDS: Mapping[str, type[AttentionBackend]] = {backend.name: backend for backend in _ALL}
"""In the order in which they are measured: after the deadline, the rest is not measured."""
