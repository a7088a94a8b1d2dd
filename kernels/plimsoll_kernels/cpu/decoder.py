"""A whole decoder's step in one call: embedding, layers, final norm."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from plimsoll_kernels.cpu.huge_pages import Buffer
from plimsoll_kernels.cpu.linear import PackedGatedLinear, PackedLinear
from plimsoll_kernels.cpu.records import OPS, KernelsRecord, LayerRecord, ModelRecord
from plimsoll_kernels.cpu.step import PagedStep, pointers
from plimsoll_kernels.cpu.threads import thread_count


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one layer and the shape of its attention (in `record`, norms and linears too).

    Norms are float32, whatever is added to them (Gemma's 1) already in. `rope` is the index of its table.
    """

    record: LayerRecord
    kept: tuple[object, ...]

    @staticmethod
    def of(
        *,
        query_key_value: PackedLinear,
        output: PackedLinear,
        gate_up: PackedGatedLinear,
        down: PackedLinear,
        attention_norm: Tensor,
        mlp_norm: Tensor,
        attention_post_norm: Tensor | None,
        mlp_post_norm: Tensor | None,
        query_norm: Tensor | None,
        key_norm: Tensor | None,
        shape: LayerRecord,
    ) -> Layer:
        """Fill the linears and norms of a record whose attention is described."""
        norms = (attention_norm, mlp_norm, attention_post_norm, mlp_post_norm, query_norm, key_norm)
        shape.query_key_value, shape.output = query_key_value.record, output.record
        shape.gate_up, shape.down = gate_up.record, down.record
        shape.attention_norm, shape.mlp_norm = attention_norm.data_ptr(), mlp_norm.data_ptr()
        shape.attention_post_norm, shape.mlp_post_norm = _address(attention_post_norm), _address(mlp_post_norm)
        shape.query_norm, shape.key_norm = _address(query_norm), _address(key_norm)
        return Layer(shape, (query_key_value, output, gate_up, down, *norms))


class CpuDecoder:
    """token ids -> normed hidden states, all layers in one call that holds no lock of Python's.

    embedding: `[vocab, hidden]`, or the output layer where the two are one, so that it is in memory once.
    """

    def __init__(
        self,
        kernels: KernelsRecord,
        layers: Sequence[Layer],
        *,
        embedding: Tensor | PackedLinear,
        embedding_scale: float,
        final_norm: Tensor,
        norm_eps: float,
        inner: int,
        gelu: bool,
    ) -> None:
        tied = isinstance(embedding, PackedLinear)
        table = embedding.weight if isinstance(embedding, PackedLinear) else embedding
        vocab, hidden = embedding.shape
        records = (LayerRecord * len(layers))(*(layer.record for layer in layers))
        self._kernels = kernels
        self._kept = (layers, records, embedding, final_norm)
        self._dtype = table.dtype
        self._hidden = hidden
        self._workspace = Buffer()
        self._seconds = (ctypes.c_double * len(OPS))()
        self._model = ModelRecord(
            layers=records,
            num_layers=len(layers),
            vocab=vocab,
            hidden=hidden,
            inner=inner,
            embedding=None if tied else table.data_ptr(),
            packed_embedding=table.data_ptr() if tied else None,
            final_norm=final_norm.data_ptr(),
            norm_eps=norm_eps,
            embedding_scale=embedding_scale,
            activation=int(gelu),
            max_heads_width=max(layer.record.query_key_value.columns for layer in layers),
        )

    def __call__(self, token_ids: Tensor, positions: Tensor, turns: Sequence[Tensor], step: PagedStep) -> Tensor:
        """token_ids and positions int64 `[T]` -> `[T, hidden]`.

        turns: for each rope float32 `[P, 2, head_dim / 2]`, cosines and sines of the positions below P.
        """
        rows, threads = token_ids.numel(), thread_count()
        hidden = torch.empty(rows, self._hidden, dtype=self._dtype)
        record = step.record
        record.tokens = token_ids.data_ptr()
        record.positions, record.turns = positions.data_ptr(), pointers(turns)
        record.hidden = hidden.data_ptr()
        record.workspace = self._workspace.pointer(self._kernels.workspace(ctypes.byref(self._model), rows, threads))
        record.seconds = self._seconds
        self._kernels.forward(ctypes.byref(self._model), ctypes.byref(step.cache.record), ctypes.byref(record), threads)
        return hidden

    def step_bytes(self, rows: int) -> int:
        """What a call of so many rows allocates: its workspace, which stays, and its result."""
        workspace = self._kernels.workspace(ctypes.byref(self._model), rows, thread_count())
        return Buffer.nbytes(workspace) + rows * self._hidden * self._dtype.itemsize

    def take_seconds(self) -> dict[str, float]:
        """Seconds by kind of op since the last call."""
        taken = dict(zip(OPS, self._seconds, strict=True))
        for index in range(len(OPS)):
            self._seconds[index] = 0.0
        return taken


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
