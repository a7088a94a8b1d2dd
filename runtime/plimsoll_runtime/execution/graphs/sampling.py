"""Head and choice of tokens as CUDA graphs: some ten launches in one, for each number of rows.

What a row asks of the choice comes with all that the step sends. What was chosen stays where the next step has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plimsoll_kernels.sampling.op import sample
from plimsoll_kernels.sampling.params import RowParams
from plimsoll_runtime.execution.graphs.capture import Capture, Captured, CaptureRequest, batch_buckets, bucket_of
from plimsoll_runtime.execution.inputs.device_state import DeviceState
from plimsoll_runtime.execution.inputs.upload_buffer import UploadSlice
from plimsoll_runtime.execution.sampling.sampler import SampledRows, Sampler, tokens_of
from plimsoll_runtime.execution.sampling.state import PlainRows
from plimsoll_runtime.models.decoder import Decoder

KIND = "choices"
"""What these graphs are called."""

_WORDS = 4
"""Of eight bytes, that are said of a row: its slot, its uniform number, and four parameters of half a word."""


class PendingSample(NamedTuple):
    """What was added to the upload buffer for a choice, by the graph of a `bucket`. `picked`: which rows of the step
    they are, None for all.
    """

    choice: SampledRows
    bucket: int
    asked: UploadSlice
    picked: UploadSlice | None


class SamplingGraphs:
    """Samples tokens of rows that ask for nothing but that (see PlainRows)."""

    def __init__(self, decoder: Decoder, sampler: Sampler, state: DeviceState, capture: Capture) -> None:
        max_rows = state.num_slots
        self._decoder = decoder
        self._sampler = sampler
        self._state = state
        self._capture = capture
        self._buckets = batch_buckets(max_rows)
        self._asked = torch.zeros(_WORDS * _stride(max_rows), dtype=torch.int64, device=state.device)
        self._hidden = torch.zeros(
            max_rows, decoder.outline.facts.hidden_size, dtype=decoder.dtype, device=state.device
        )
        self._graphs: dict[int, Captured] = {}

    @property
    def captured(self) -> int:
        """How many graphs there are."""
        return len(self._graphs)

    def wanted(self) -> list[CaptureRequest]:
        """One for each bucket."""
        return [CaptureRequest(KIND, bucket, partial(self._add, bucket)) for bucket in self._buckets]

    def post(self, slots: Sequence[int], picked: NDArray[np.int64] | None) -> PendingSample | None:
        """Add what slots ask for to the upload buffer of their step. `picked`: see PendingSample.

        None if they ask for more than a graph does, or no graph has room for them.
        """
        bucket = bucket_of(len(slots), self._buckets) if slots else None
        if bucket not in self._graphs or (found := self._sampler.plain(slots, self._state.device)) is None:
            return None
        choice, rows = found
        buffer = self._state.upload_buffer
        asked = buffer.add(_said(rows, bucket, self._state.unwanted))
        return PendingSample(choice, bucket, asked, None if picked is None else buffer.add(picked))

    def run(self, posted: PendingSample, hidden: Tensor) -> Tensor:
        """Sample from hidden states `[T, H]` of a step that was sent: int64 `[R]` on the device, valid until the next
        call, NO_TOKEN where a row's logits are not finite.
        """
        count = len(posted.choice.slots)
        own, asked = self._hidden[:count], posted.asked.on_device
        if posted.picked is None:
            own.copy_(hidden)
        else:
            torch.index_select(hidden, 0, posted.picked.on_device, out=own)
        self._asked[: len(asked)].copy_(asked)
        graph = self._graphs[posted.bucket]
        graph.replay()
        self._sampler.chose(posted.choice)
        return graph.out[:count]

    def _add(self, bucket: int) -> None:
        """Capture a graph over the first rows, which ask for nothing and nobody wants."""
        words = _said(PlainRows.none(), bucket, self._state.unwanted)
        asked = self._asked[: words.size]
        asked.copy_(torch.from_numpy(words))
        slots, uniform, params = _read(asked, bucket)

        def work() -> Tensor:
            best, chosen = sample(self._decoder.logits(self._hidden[:bucket]), params, uniform)
            tokens = tokens_of(best, chosen)
            self._state.record(slots, tokens)
            return tokens

        self._graphs[bucket] = self._capture(work)


def _stride(rows: int) -> int:
    """Words of a number of each row: so many that what is half as long begins at a multiple of 16 bytes as well."""
    return -(-rows // 4) * 4


def _said(rows: PlainRows, bucket: int, unwanted: int) -> NDArray[np.int64]:
    """What is said of rows, and of those up to the bucket, which nobody wants."""
    stride, count = _stride(bucket), len(rows.slots)
    words = np.zeros(_WORDS * stride, dtype=np.int64)
    words[:count], words[count:stride] = rows.slots, unwanted
    words[stride : 2 * stride].view(np.float64)[:count] = rows.uniforms
    halves = words[2 * stride :].view(np.float32).reshape(4, stride)
    halves[0, :count], halves[2, :count], halves[3, :count] = rows.temperature, rows.top_p, rows.min_p
    halves[1].view(np.int32)[:count] = rows.top_k
    return words


def _read(words: Tensor, bucket: int) -> tuple[Tensor, Tensor, RowParams]:
    """Slots, uniform numbers and parameters of a bucket's rows, where they lie in words."""
    stride = _stride(bucket)
    uniform = words[stride : 2 * stride].view(torch.float64)[:bucket]
    temperature, top_k, top_p, min_p = words[2 * stride :].view(torch.float32).view(4, stride)[:, :bucket].unbind()
    return words[:bucket], uniform, RowParams(temperature, top_k.view(torch.int32), top_p, min_p)
