"""Warm-up steps that compile every variant of a kernel that serving will launch.

What Triton knows of numbers that differ by batch is left out of its variants (`do_not_specialize` of the kernels), so
that few are left: the divisions of a context among programs, decodes that share a prefix, decodes beside chunks, and
products of few and many rows.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterator, Sequence
from itertools import chain

import torch

from plimsoll_runtime.execution.attention.base import OUT_OF_MEMORY
from plimsoll_runtime.execution.attention.shared_prefix.planner import SharingBackend
from plimsoll_runtime.execution.forward import ForwardPass
from plimsoll_runtime.execution.graphs.decode import GraphBackend
from plimsoll_runtime.execution.inputs.batch_state import padding_inputs
from plimsoll_runtime.execution.kv.cache import KvCache

logger = logging.getLogger(__name__)

Rows = Sequence[tuple[int, int]]
"""Of each sequence of a step: its rows, and the tokens of its context."""

CHUNK = 17
"""Rows of a chunk beside decodes: more than a tile of the smallest has."""


def warmup_batches(lengths: Sequence[int], longest: int, max_sequences: int, max_tokens: int) -> Iterator[Rows]:
    """A decode over each of these lengths, the most decodes of a step, decodes with a chunk, and the most rows.

    No context has more than `longest` tokens.
    """
    for length in lengths:
        yield [(1, length)]
    sequences = max(1, min(max_sequences, max_tokens))
    yield [(1, 1)] * sequences
    beside = min(2, sequences - 1)
    chunk = min(CHUNK, longest, max_tokens - beside)
    yield [(chunk, chunk), *[(1, 1)] * beside]
    whole, rest = divmod(max_tokens, longest)
    rows = [longest] * min(whole, sequences) + ([rest] if rest and whole < sequences else [])
    yield [(each, each) for each in rows]


def shared_prefix_batches(backend: GraphBackend, longest: int, max_sequences: int, max_tokens: int) -> Iterator[Rows]:
    """Decodes of one length, for each key of their launches: over the padding block all of it is shared.

    The most sequences with the longest contexts of a key come first: where they save too little to share, none does.
    """
    most, seen = min(max_sequences, max_tokens), set[Hashable]()
    counts = [most, *(1 << k for k in reversed(range(1, most.bit_length())) if 1 << k < most)]
    for count in counts if most > 1 else ():
        for length in reversed(backend.launch_lengths(count, longest)):
            if (key := backend.launch_key(count, length)) not in seen:
                seen.add(key)
                yield [(1, length)] * count


@torch.inference_mode()
def compile_kernels(
    forward_pass: ForwardPass, cache: KvCache, longest: int, max_sequences: int, max_tokens: int
) -> None:
    """Compute these batches over the padding block. Call it while no slot is in use: it overwrites their states."""
    backend = forward_pass.backend
    lengths = backend.launch_lengths(1, longest) if isinstance(backend, GraphBackend) else ()
    shared: Iterator[Rows] = iter(())
    if isinstance(backend, GraphBackend) and isinstance(backend, SharingBackend) and backend.prefixes.any:
        shared = shared_prefix_batches(backend, longest, max_sequences, max_tokens)
    for rows in chain(warmup_batches(lengths, longest, max_sequences, max_tokens), shared):
        try:
            forward_pass.run(padding_inputs(rows, cache))
        except OUT_OF_MEMORY as error:
            logger.warning(
                "the device has no memory for a first step of %d rows (%s): kernels that only such steps launch are "
                "compiled while serving; a lower --max-batch-tokens or --kv-memory leaves more room",
                sum(count for count, _ in rows),
                error,
            )
