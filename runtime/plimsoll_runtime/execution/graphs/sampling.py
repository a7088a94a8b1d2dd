"""Head and sampling as CUDA graphs: some ten launches in one, for each number of rows.

The sampling parameters of rows are sent with the step's other numbers. Sampled tokens stay on the device for the next
step.
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

KIND = "sampled rows"
"""The name of this kind of graph in logs."""

_WORDS = 4
"""8-byte words for each row: its slot, its uniform random number, and four sampling parameters of half a word."""


class PendingSample(NamedTuple):
    """The numbers in a step's upload buffer for sampling with the graph of the capture size `bucket`.

    `asked`: the sampling parameters. `picked`: the indices of the step's rows that are sampled, None if all are.
    """

    choice: SampledRows
    bucket: int
    asked: UploadSlice
    picked: UploadSlice | None


class SamplingGraphs:
    """Samples tokens of rows without log probabilities, constraints or logits processors (see PlainRows)."""

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

    def wanted(self) -> list[CaptureRequest]:
        """Return a capture request for each capture size."""
        return [
            CaptureRequest(KIND, bucket, partial(self._add, bucket), partial(self._drop, bucket))
            for bucket in self._buckets
        ]

    def post(self, slots: Sequence[int], picked: NDArray[np.int64] | None) -> PendingSample | None:
        """Add the sampling parameters of slots to the upload buffer of their step. `picked`: see PendingSample.

        Returns None if a slot needs more than these parameters (see PlainRows), no graph has enough rows, or there are
        no slots.
        """
        bucket = bucket_of(len(slots), self._buckets) if slots else None
        if bucket not in self._graphs or (found := self._sampler.plain(slots, self._state.device)) is None:
            return None
        choice, rows = found
        buffer = self._state.upload_buffer
        asked = buffer.add(_said(rows, bucket, self._state.unwanted))
        return PendingSample(choice, bucket, asked, None if picked is None else buffer.add(picked))

    def run(self, posted: PendingSample, hidden: Tensor) -> Tensor:
        """Sample from hidden states `[T, H]` of a step whose upload buffer has been sent.

        Returns the tokens, int64 `[R]` on the device, valid until the next call, NO_TOKEN for a row whose logits are
        not finite.
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
        """Capture the graph that computes the logits of `bucket` rows and samples their tokens, all of them padding."""
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

    def _drop(self, bucket: int) -> None:
        self._graphs.pop(bucket, None)


def _stride(rows: int) -> int:
    """Return `rows` rounded up to a multiple of 4, so that every field of 8 or 4 bytes a row begins at a multiple of 16
    bytes.
    """
    return -(-rows // 4) * 4


def _said(rows: PlainRows, bucket: int, unwanted: int) -> NDArray[np.int64]:
    """Pack slots and sampling parameters of the rows into 8-byte words (see _WORDS). Rows up to the capture size
    `bucket` are padding, with the slot `unwanted`.
    """
    stride, count = _stride(bucket), len(rows.slots)
    words = np.zeros(_WORDS * stride, dtype=np.int64)
    words[:count], words[count:stride] = rows.slots, unwanted
    words[stride : 2 * stride].view(np.float64)[:count] = rows.uniforms
    halves = words[2 * stride :].view(np.float32).reshape(4, stride)
    halves[0, :count], halves[2, :count], halves[3, :count] = rows.temperature, rows.top_p, rows.min_p
    halves[1].view(np.int32)[:count] = rows.top_k
    return words


def _read(words: Tensor, bucket: int) -> tuple[Tensor, Tensor, RowParams]:
    """Return the slots, uniform numbers and sampling parameters of `bucket` rows, as views of the words of `_said`."""
    stride = _stride(bucket)
    uniform = words[stride : 2 * stride].view(torch.float64)[:bucket]
    temperature, top_k, top_p, min_p = words[2 * stride :].view(torch.float32).view(4, stride)[:, :bucket].unbind()
    return words[:bucket], uniform, RowParams(temperature, top_k.view(torch.int32), top_p, min_p)
