"""Attention over the cache as the CPU kernels read it."""

from __future__ import annotations

from torch import Tensor

from plimsoll_kernels.cpu.op_records import WIDEST, ShapeRecord
from plimsoll_runtime.models.fused_latent import apart
from plimsoll_runtime.models.spec.attention import AttentionShape, LatentAttention


def shape_record(shape: AttentionShape, slopes: Tensor | None = None, sinks: int | None = None) -> ShapeRecord:
    """The attention of a layer as the kernels read it, with `slopes_of` it and the address of float32 sinks [heads]."""
    return ShapeRecord(
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        window=shape.window or 0,
        chunk=shape.chunk or 0,
        coarse=shape.alibi is not None and shape.alibi.coarse,
        whole=shape.whole,
        scale=shape.scale,
        softcap=shape.softcap or 0.0,
        slopes=None if slopes is None else slopes.data_ptr(),
        sinks=sinks,
        latent=shape.head_dim if shape.latent else 0,
        apart=shape.head_dim,
    )


def latent_shape_record(own: LatentAttention) -> ShapeRecord:
    """The same over vectors of tokens: results have the numbers that were normed, filled up to whole registers."""
    shape = own.shape
    return ShapeRecord(
        heads=shape.heads,
        kv_heads=1,
        head_dim=shape.head_dim,
        scale=shape.scale,
        latent=-(-own.rank // WIDEST) * WIDEST,
        apart=apart(own.rank),
    )
