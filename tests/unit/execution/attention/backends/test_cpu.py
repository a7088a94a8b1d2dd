"""The CPU kernels equal dense attention over several steps, in a cache whose unwritten cells are NaN."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_support.instructions import BUILDS, Build, forced

from plimsoll_runtime.execution.attention.backends.cpu import CpuBackend
from plimsoll_runtime.models.spec.attention import Alibi, AttentionShape

Simulate = Callable[..., Any]


def shape(heads: int, kv_heads: int, head_dim: int, **more: Any) -> AttentionShape:
    return AttentionShape(heads=heads, kv_heads=kv_heads, head_dim=head_dim, scale=head_dim**-0.5, **more)


def slopes(heads: int, *, coarse: bool = False) -> Alibi:
    return Alibi(tuple(0.7**head for head in range(heads)), coarse)


@pytest.fixture(params=BUILDS, ids=str, scope="module")
def build(request: pytest.FixtureRequest) -> Iterator[Build]:
    with forced(request.param) as build:
        yield build


@pytest.mark.matrix(11)
@pytest.mark.parametrize(
    ("block_size", "shapes"),
    [
        (16, [shape(4, 2, 16), shape(4, 2, 16, window=5)]),
        (16, [shape(12, 4, 64), shape(16, 1, 64, softcap=4.0)]),
        (32, [shape(8, 1, 256, window=17), shape(3, 3, 80)]),
        (64, [shape(14, 2, 48, window=1, softcap=2.0)]),
        (16, [shape(4, 2, 32, chunk=20), shape(6, 2, 16, chunk=32, window=7), shape(2, 1, 16, chunk=1, sinks=True)]),
        (16, [shape(6, 2, 32, sinks=True), shape(20, 4, 16, sinks=True, window=9, softcap=3.0)]),
        (32, [shape(6, 2, 32, alibi=slopes(6)), shape(13, 1, 16, alibi=slopes(13), window=40, softcap=3.0)]),
        (16, [shape(6, 1, 64, alibi=slopes(6, coarse=True)), shape(3, 3, 16, alibi=slopes(3), chunk=48)]),
        (32, [shape(5, 1, 48, latent=True), shape(4, 2, 16), shape(30, 1, 576, latent=True, window=40)]),
    ],
    ids=["small", "groups", "wide", "odd", "chunks", "sinks", "slopes", "coarse-slopes", "latent"],
)
def test_several_steps(simulation: Simulate, build: Build, block_size: int, shapes: list[AttentionShape]) -> None:
    run = simulation(CpuBackend, shapes, build.dtype, block_size, 60)
    a, b, c = (run.add() for _ in range(3))
    run.step({a: 21, b: 1})
    run.step({b: 1, a: 1, c: 130})
    run.step({c: 37, a: 1})
    run.step({a: 1, b: 1, c: 1})
    run.step({b: 14})


@pytest.mark.matrix(2)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_any_batch(simulation_class: Simulate, build: Build, data: st.DataObject) -> None:
    group, kv_heads, dims = (data.draw(st.integers(1, top)) for top in (13, 3, 6))
    seen = data.draw(st.dictionaries(st.sampled_from(["window", "chunk"]), st.integers(1, 300), max_size=1))
    kind = data.draw(st.sampled_from(["plain", "sinks", "slopes"]))
    alibi = slopes(group * kv_heads) if kind == "slopes" else None
    latent = kv_heads == 1 and data.draw(st.booleans())
    more = {**seen, "sinks": kind == "sinks", "alibi": alibi, "latent": latent}
    run = simulation_class(CpuBackend, [shape(group * kv_heads, kv_heads, 16 * dims, **more)], build.dtype, 16, 120)
    sequences = [run.add() for _ in range(data.draw(st.integers(1, 4)))]
    for _ in range(data.draw(st.integers(1, 4))):
        counts = {s: data.draw(st.integers(0, 90)) for s in sequences}
        if chosen := {s: n for s, n in counts.items() if n}:
            run.step(chosen)
