"""Capturing work on a GPU as a CUDA graph, which is launched again in one call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Captured:
    """What work became: `replay` does it again, over the tensors it read then, and leaves its result in `out`."""

    out: Tensor
    replay: Callable[[], None]


class Capture(Protocol):
    """A way to keep work for later."""

    @property
    def used(self) -> int:
        """Bytes of the device that are taken now, by whomever: what a capture adds is what it has cost."""

    def __call__(self, work: Callable[[], Tensor]) -> Captured:
        """Capture work that allocates nothing but on the device, and never waits for it. It is not done yet.

        Raises RuntimeError when it cannot be captured; errors of the work itself come out as they are.
        """


class CudaCapture:
    """Captures on a stream of its own; all graphs share one memory pool, since only one of them runs at a time.

    An output is therefore valid until another graph is replayed.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool: Any = torch.cuda.graph_pool_handle()
        self._device = device

    @property
    def used(self) -> int:
        """See Capture: by the driver, for a graph takes memory beside that of torch's allocator."""
        free, total = torch.cuda.mem_get_info(self._device)
        return int(total - free)

    def __call__(self, work: Callable[[], Tensor]) -> Captured:
        """See Capture. The work runs twice before: its kernels are compiled and its libraries have their workspaces."""
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            work()
            work()
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads (a copy of blocks to the host, say) may go on allocating meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            out = work()
        return Captured(out, graph.replay)
