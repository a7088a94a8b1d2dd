"""Warm-up steps that compile every variant of a kernel that serving will launch.

The kernels exclude numbers that differ by batch from Triton's specialisation (`do_not_specialize`), so only a few
variants are left: the divisions of a context among programs, decodes that share a prefix, decodes together with chunks,
and products of few and many rows.
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
"""For each sequence of a step: its rows, and the tokens of its context."""

CHUNK = 17
"""Rows of a chunk computed together with decodes: more than the smallest tile has."""


def warmup_batches(lengths: Sequence[int], longest: int, max_sequences: int, max_tokens: int) -> Iterator[Rows]:
    """Yield a decode over each of these lengths, the most decodes of a step, decodes with a chunk, and the most rows.

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
    """Yield for each launch key a batch of decodes of one length. All blocks are the padding block, so the decodes
    share them.

    The batch of a key has the most sequences and then the longest contexts: if these save too little to share, no
    decodes with that key share.
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
    """Run the warm-up batches over the padding block, which compiles their kernels. Call it while no slot is in use: it
    overwrites the slots' states.
    """
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
                "the device has too little memory for a warm-up step of %d rows (%s): kernels of such steps are "
                "compiled while serving; lower --max-batch-tokens or --kv-memory to avoid this",
                sum(count for count, _ in rows),
                error,
            )
