"""`python -m kernel_support.step_variants`: print the variants of kernels that steps of a model need.

Steps of one model with experts, whose layers attend to keys and to latent vectors, run for a device that this machine
lacks: Triton reports the variant of each launch, and nothing is compiled. Prints a JSON object a line, with the keys of
variants by kernel: first of all warm-up steps together, then of each step; last the number of variants that Triton's
own hook has reported after each of three launches, which are compiled.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import chain
from typing import Any
from unittest.mock import patch

import torch
from kernel_support.ahead import TARGETS, NoDevice, compiling
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction, compute_cache_key

from plimsoll_kernels import dispatch
from plimsoll_kernels.activation.kernel import launch_gated
from plimsoll_kernels.activation.op import gated
from plimsoll_kernels.compilations import watch_triton
from plimsoll_kernels.decode_tables.op import decode_tables, write_blocks
from plimsoll_kernels.grouped_product.op import grouped_product
from plimsoll_kernels.latent_attention import kernel as latent
from plimsoll_kernels.latent_attention.op import latent_attention
from plimsoll_kernels.paged_attention.batch import PagedBatch
from plimsoll_kernels.paged_attention.decode import kernel as decode
from plimsoll_kernels.paged_attention.decode.splits import split_lengths
from plimsoll_kernels.paged_attention.op import paged_attention, write_cache
from plimsoll_kernels.paged_attention.prefix import kernel as prefix
from plimsoll_kernels.rms_norm.op import add_rms_norm, rms_norm
from plimsoll_kernels.rotary.op import rotary
from plimsoll_kernels.rotary_cache.op import rotary_cache
from plimsoll_runtime.execution.attention.backends import triton
from plimsoll_runtime.execution.attention.shared_prefix.grouping import SharedPrefix
from plimsoll_runtime.execution.attention.shared_prefix.planner import PrefixPlan
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.execution.warmup import shared_prefix_batches, warmup_batches
from plimsoll_runtime.models.spec.attention import AttentionShape

HEADS, KV_HEADS, DIM, HIDDEN, INNER = 9, 3, 80, 720, 512
EXPERTS, CHOSEN, EXPERT = 6, 2, 64
LATENT_HEADS, LATENT = 16, 576
BLOCK, BLOCKS = 16, 192
LONGEST, MOST_SEQUENCES, MOST_TOKENS = BLOCK * BLOCKS - 72, 64, 2048
BATCHES, CONTEXTS = (1, 2, 3, 16, 17, 64), (20, 257, 1000, 1025, LONGEST)
PROCESSORS = 132
BF16 = torch.bfloat16

Rows = Sequence[tuple[int, int]]
"""Rows and context of each sequence."""
Variants = dict[str, list[str]]


def steps() -> Iterator[tuple[str, Rows]]:
    """Yield batches of all sizes: decodes, chunks, and decodes together with a chunk."""
    for count in BATCHES:
        for context in CONTEXTS:
            yield f"{count} decodes of {context}", [(1, context)] * count
        yield f"{count} chunks", [(5 + number % 7, 300) for number in range(count)]
        yield f"a chunk and {count} decodes", [(100, 500), *[(1, 400)] * count]


def compute(rows: Rows) -> None:
    """Compute a layer of each kind. The numbers of the step are in one tensor, as in `execution.inputs`."""
    total = sum(count for count, _ in rows)
    _, _, cells = torch.zeros(3, total, dtype=torch.int64).unbind()
    tables = [[0] * -(-context // BLOCK) for _, context in rows]
    batch = PagedBatch.of([count for count, _ in rows], [context for _, context in rows], tables, "cpu")
    states, weight = torch.zeros(total, HIDDEN, dtype=BF16), torch.ones(HIDDEN)
    rms_norm(states, weight, 1e-6, implementation="triton")
    add_rms_norm(states, states, weight, 1e-6, implementation="triton")
    heads = torch.zeros(total, HEADS + 2 * KV_HEADS, DIM, dtype=BF16)
    rms_norm(heads[:, :HEADS], torch.ones(DIM), 1e-6, implementation="triton")
    turns = torch.ones(total, DIM // 2, dtype=BF16)
    keys, values = torch.zeros(2, KV_HEADS, BLOCKS, BLOCK, DIM, dtype=BF16)
    rotary(heads, turns, turns, implementation="triton")
    query = rotary_cache(heads, turns, turns, keys, values, cells, implementation="triton")
    key, value = heads[:, HEADS : HEADS + KV_HEADS], heads[:, HEADS + KV_HEADS :]
    write_cache(key, value, keys, values, cells, implementation="triton")
    paged_attention(query, keys, values, batch, scale=0.1, implementation="triton")
    decodes = tuple(number for number, (count, context) in enumerate(rows) if count == 1 and context > BLOCK)
    if len(decodes) > 1:
        plan = PrefixPlan((SharedPrefix(decodes, 1),), len(rows), BLOCK)
        sharing = replace(batch, prefixes=plan.tables(torch.device("cpu")))
        paged_attention(query, keys, values, sharing, scale=0.1, implementation="triton")
    vectors = torch.zeros(BLOCKS, BLOCK, LATENT, dtype=BF16)
    seen = torch.zeros(total, LATENT_HEADS, LATENT, dtype=BF16)
    latent_attention(seen, vectors, batch, scale=0.1, implementation="triton")
    gated(torch.zeros(total, 2 * INNER, dtype=BF16), "silu", implementation="triton")
    own, ends = torch.zeros(total * CHOSEN, HIDDEN, dtype=BF16), torch.zeros(EXPERTS, dtype=torch.int32)
    grouped_product(own, torch.zeros(EXPERTS, EXPERT, HIDDEN, dtype=BF16), ends, implementation="triton")
    # The numbers of rows are in one tensor as well, as in `execution.graphs`.
    positions, begins, firsts, places, written = torch.zeros(5, len(rows), dtype=torch.int64).unbind()
    kept, width = torch.zeros(BLOCKS, dtype=torch.int32), max(len(table) for table in tables)
    write_blocks(kept, places, written, implementation="triton")
    decode_tables(kept, positions, begins, firsts, block_size=BLOCK, width=width, implementation="triton")


@contextmanager
def asked() -> Iterator[Variants]:
    """Collect the variants of launches by kernel, each variant once."""
    found: Variants = {}

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        *_, binder = self.device_caches[driver.active.get_current_device()]
        _, specialization, chosen = binder(*args, **options)
        key = compute_cache_key({}, specialization, chosen)
        own = found.setdefault(self.fn.__name__, [])
        if key not in own:
            own.append(key)

    driver.set_active(NoDevice(TARGETS["sm_90"]))
    with patch.object(JITFunction, "run", run):
        yield found


def counted() -> list[int]:
    """Return Triton's counts of variants after a kernel's first launch, the same launch again, and one of another
    type.
    """
    compilations = watch_triton()
    assert compilations is not None
    compilations.begin()
    counts = []
    with compiling(TARGETS["sm_90"], []):
        for dtype in (BF16, BF16, torch.float16):
            launch_gated(torch.zeros(3, 2 * INNER, dtype=dtype), "silu")
            counts.append(compilations.count)
    return counts


def main() -> None:
    """Print the variants."""
    with ExitStack() as on_a_device:
        on_a_device.enter_context(patch.object(dispatch, "_interpreted", return_value=True))
        for module in (decode, prefix, latent, triton):
            on_a_device.enter_context(patch.object(module, "multiprocessors", return_value=PROCESSORS))
        shape = AttentionShape(HEADS, KV_HEADS, DIM, scale=0.1)
        backend = triton.TritonBackend(KvCache([shape], BLOCKS, BLOCK, BF16, torch.device("cpu")))
        together = shared_prefix_batches(backend, LONGEST, MOST_SEQUENCES, MOST_TOKENS)
        with asked() as found:
            for rows in chain(warmup_batches(split_lengths(LONGEST), LONGEST, MOST_SEQUENCES, MOST_TOKENS), together):
                compute(rows)
        print(json.dumps({"step": "warm-up", "kernels": found}))
        for name, rows in steps():
            with asked() as found:
                compute(rows)
            print(json.dumps({"step": name, "kernels": found}))
    print(json.dumps({"counted": counted()}))


if __name__ == "__main__":
    main()
