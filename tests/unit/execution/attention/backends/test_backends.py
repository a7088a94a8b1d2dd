"""Every backend except the CPU kernels' equals dense attention over several steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from plimsoll_runtime.execution.attention.backends.gather.backend import GatheredBackend
from plimsoll_runtime.execution.attention.backends.reference import ReferenceBackend
from plimsoll_runtime.execution.attention.backends.sdpa import SdpaBackend
from plimsoll_runtime.execution.attention.base import AttentionBackend
from plimsoll_runtime.models.spec.attention import Alibi, AttentionShape

Simulate = Callable[..., Any]


def shape(heads: int, kv_heads: int, head_dim: int, **more: Any) -> AttentionShape:
    return AttentionShape(heads=heads, kv_heads=kv_heads, head_dim=head_dim, scale=head_dim**-0.5, **more)


SLOPES = Alibi((0.5, 0.3, 0.11, 0.002))
KINDS = {
    "chunk": {"chunk": 16},
    "chunk-window": {"chunk": 40, "window": 25},
    "alibi": {"alibi": SLOPES},
    "alibi-window": {"alibi": SLOPES, "window": 9},
    "sinks": {"sinks": True},
    "sinks-window": {"sinks": True, "window": 17},
}
"""Shapes with 4 heads."""
LATENT = {"latent": True}
COARSE = {"alibi": replace(SLOPES, coarse=True)}


def several_steps(run: Any) -> None:
    a, b, c = (run.add() for _ in range(3))
    run.step({a: 21, b: 1})
    run.step({b: 1, a: 1, c: 30})
    run.step({c: 37, a: 1})
    run.step({a: 1, b: 1, c: 1})


def test_reference(simulation: Simulate) -> None:
    shapes = [shape(4, 2, 16), shape(6, 2, 24, window=9, softcap=3.0)]
    several_steps(simulation(ReferenceBackend, shapes, torch.float32, 16, 30))


@pytest.mark.matrix(4)
@pytest.mark.parametrize("backend", [ReferenceBackend, SdpaBackend, GatheredBackend])
@pytest.mark.parametrize("kind", [*KINDS.values(), COARSE, LATENT], ids=[*KINDS, "coarse", "latent"])
def test_kinds_of_attention(simulation: Simulate, backend: type[AttentionBackend], kind: dict[str, Any]) -> None:
    shapes = [shape(4, 2, 16, **kind), shape(4, 4, 24), shape(4, 1, 32, **kind)]
    run = simulation(backend, shapes, torch.float32, 16, 80)
    several_steps(run)
    d = run.add()
    run.step({d: 300})
    run.step({d: 1})


@pytest.mark.parametrize("backend", [SdpaBackend, GatheredBackend])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_kinds_of_attention_in_bfloat16(
    simulation: Simulate, backend: type[AttentionBackend], kind: dict[str, Any]
) -> None:
    several_steps(simulation(backend, [shape(4, 2, 16, **kind)], torch.bfloat16, 16, 40))


@pytest.mark.matrix(2)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_kinds_of_attention_in_triton(simulation: Simulate, triton_device: str, kind: dict[str, Any]) -> None:
    from plimsoll_runtime.execution.attention.backends.triton import TritonBackend

    shapes = [shape(4, 2, 16, **kind), shape(4, 1, 32, **kind)]
    several_steps(simulation(TritonBackend, shapes, torch.float32, 16, 40, device=triton_device))


LATENTS = [shape(4, 1, 32, **LATENT), shape(20, 1, 40, **LATENT), shape(4, 2, 16)]


@pytest.mark.long
def test_latents_in_triton(simulation: Simulate, triton_device: str) -> None:
    from plimsoll_runtime.execution.attention.backends.triton import TritonBackend

    several_steps(simulation(TritonBackend, LATENTS, torch.float32, 16, 40, device=triton_device))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_sdpa(simulation: Simulate, dtype: torch.dtype) -> None:
    shapes = [shape(4, 2, 16), shape(6, 2, 24, window=9), shape(3, 1, 64, window=40), shape(2, 2, 32)]
    several_steps(simulation(SdpaBackend, shapes, dtype, 16, 40))
    several_steps(simulation(SdpaBackend, shapes, dtype, 8, 40))


@pytest.mark.matrix(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("block_size", "shapes"),
    [
        (8, [shape(2, 2, 64), shape(2, 2, 64, window=11)]),
        (16, [shape(4, 1, 128, window=16), shape(4, 2, 64, softcap=4.0)]),
        (32, [shape(8, 1, 256, window=512)]),
        (16, [shape(3, 1, 80)]),
    ],
    ids=["group-1", "group-4-and-2", "group-8", "odd-sizes"],
)
def test_triton(
    simulation: Simulate, triton_device: str, dtype: torch.dtype, block_size: int, shapes: list[AttentionShape]
) -> None:
    from plimsoll_runtime.execution.attention.backends.triton import TritonBackend

    if dtype is torch.bfloat16 and triton_device == "cpu":
        pytest.skip("Triton's interpreter multiplies the bits of bfloat16 as integers")
    several_steps(simulation(TritonBackend, shapes, dtype, block_size, 40, device=triton_device))
