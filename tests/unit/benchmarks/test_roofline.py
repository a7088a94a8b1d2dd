from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from plimsoll_kernels.cpu.library import kernels
from serving.models import MIXTURE, SMALL, TINY
from serving.roofline import Machine, burst_seconds, floor_seconds
from serving.workloads import Request, Workload

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
SLOW_MEMORY = Machine(bandwidth=1e9, flops=1e30)
SLOW_PRODUCT = Machine(bandwidth=1e30, flops=1e9)


def ask(*lengths: tuple[int, int], users: int | None = None, shared: int = 0, primed: bool = False) -> Workload:
    requests = tuple(Request((300,) * prompt, output) for prompt, output in lengths)
    primer = Request((300,), 1) if primed else None
    return Workload("W", "", requests, users=users, shared=shared, primer=primer, shape=TINY)


def test_small_has_107_million_parameters() -> None:
    assert round((SMALL.body + SMALL.head) / 1e6) == 107


def test_a_token_of_the_mixture_goes_through_as_much_as_one_of_small() -> None:
    """Except for the routers, 0.6 million parameters."""
    assert MIXTURE.body - SMALL.body == 12 * 64 * 768


def test_experts_are_read_where_they_are_chosen() -> None:
    """One token chooses 8 of 64; two choose 15 at random, one of which both have; very many choose all of them."""
    expert = 12 * 3 * 768 * 288 * 2
    others = 2 * (MIXTURE.around + MIXTURE.head)
    assert MIXTURE.weight_bytes(1) == pytest.approx(others + 8 * expert)
    assert MIXTURE.weight_bytes(2) == pytest.approx(others + 15 * expert)
    assert MIXTURE.weight_bytes(10_000) == pytest.approx(others + 64 * expert)


def test_a_single_token_costs_all_weights_once() -> None:
    assert floor_seconds(ask((8, 1)), SLOW_MEMORY) == pytest.approx(TINY.weight_bytes(1) / 1e9)


def test_each_further_token_reads_weights_and_the_cache_so_far() -> None:
    expected = 2 * TINY.weight_bytes(1) + TINY.kv_bytes * 9
    assert floor_seconds(ask((8, 2)), SLOW_MEMORY) == pytest.approx(expected / 1e9)


def test_the_output_layer_counts_only_where_a_token_is_chosen() -> None:
    expected = 2 * (TINY.body * 8 + TINY.head) + 2 * (TINY.body + TINY.head)
    assert floor_seconds(ask((8, 2)), SLOW_PRODUCT) == pytest.approx(expected / 1e9)


def test_a_shared_prefix_is_computed_once_and_a_primed_one_never() -> None:
    apart, shared = ask((12, 1), (12, 1)), ask((12, 1), (12, 1), shared=8)
    primed = ask((12, 1), (12, 1), shared=8, primed=True)

    costs = [floor_seconds(w, SLOW_PRODUCT) for w in (apart, shared, primed)]

    assert costs[0] - costs[1] == pytest.approx(2 * TINY.body * 8 / 1e9)
    assert costs[1] - costs[2] == pytest.approx(2 * TINY.body * 8 / 1e9)


def test_more_requests_than_users_take_more_steps() -> None:
    together, in_turn = ask((8, 4), (8, 4)), ask((8, 4), (8, 4), users=1)

    assert floor_seconds(in_turn, SLOW_MEMORY) > 1.5 * floor_seconds(together, SLOW_MEMORY)


def test_the_burst_is_the_prefill_of_those_that_arrive_first() -> None:
    expected = 2 * (TINY.body * 24 + 2 * TINY.head)
    assert burst_seconds(ask((8, 4), (16, 4), (500, 4), users=2), SLOW_PRODUCT) == pytest.approx(expected / 1e9)


WITHOUT_AVX512 = """
import torch
from instructions import run
from serving.roofline import _cpu_flops, onednn_packs_bfloat16

assert not onednn_packs_bfloat16()
assert _cpu_flops() > 0
torch.set_num_threads(1)
run.READ_BYTES = 2**22
found = run._case(run._systems(torch.randn(64, run.INPUTS)), 8, 1)["bfloat16"]["avx2"]
assert found["over_onednn"] is None, found
assert found["over_memory"] is not None, found
"""


@pytest.mark.long
def test_a_processor_with_avx2_alone_has_a_roofline() -> None:
    """oneDNN's instruction limit simulates such a processor: it then packs no bfloat16, like without AVX-512."""
    found = kernels(torch.bfloat16, "avx2")
    if found is None:
        pytest.skip("no CPU kernels for AVX2 here")
    environment = os.environ | {
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "PLIMSOLL_CPU_ISA": "avx2",
        "PYTHONPATH": os.pathsep.join([str(BENCHMARKS), *sys.path]),
    }
    command = [sys.executable, "-c", WITHOUT_AVX512]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
