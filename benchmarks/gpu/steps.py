"""Whole steps of a decoder: decodes replayed from a graph, and a long prompt, at once or in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpu.clock import Limits, seconds
from plimsoll_runtime.engine.protocol.messages import RequestContext
from plimsoll_runtime.engine.protocol.plan import ScheduledSequence, SlotInit, StepPlan, TableChange
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.execution.attention.backends.triton import TritonBackend
from plimsoll_runtime.execution.attention.base import AttentionBatch, BlockTables
from plimsoll_runtime.execution.graphs.capture import Capture
from plimsoll_runtime.execution.graphs.decode import DecodeGraphs
from plimsoll_runtime.execution.graphs.sampling import SamplingGraphs
from plimsoll_runtime.execution.inputs.device_state import DeviceState, columns_of
from plimsoll_runtime.execution.inputs.step_rows import StepRows
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.execution.parts import StepParts
from plimsoll_runtime.execution.sampling.sampler import Sampler
from plimsoll_runtime.models.decoder import TorchDecoder
from plimsoll_runtime.models.ops.cost import OpCost, total

BLOCK_SIZE = 16
STEPS = 64
"""Decode steps in a round; each reads one token more than the previous one."""


@dataclass(frozen=True, slots=True)
class Decodes:
    """Number of sequences that decode together, each after `context` tokens."""

    sequences: int
    context: int

    def __str__(self) -> str:
        return f"decode {self.sequences} after {self.context}"


BATCHES = (Decodes(64, 2048), Decodes(256, 1024))


@torch.inference_mode()
def decode(
    decoder: TorchDecoder, capture: Capture, known: Limits, work: Decodes, rounds: int, device: torch.device
) -> dict[str, Any]:
    """Return the share of the copy bandwidth at which steps read weights and cache, and that of their roofline. Each
    step reads the token that the previous one sampled on the device. The roofline of a step is the larger of its bytes
    over the bandwidth and its products over the rate.
    """
    cache, blocks = _cache(decoder, [work.context + STEPS] * work.sequences, device)
    columns = columns_of(work.context + STEPS, BLOCK_SIZE)
    state = DeviceState(work.sequences, len(cache.groups), cache.num_blocks, columns, device)
    graphs, choices = _captured(decoder, capture, cache, state, work)
    for slot, table in enumerate(blocks):
        for group, kept in enumerate(state.tables):
            kept.change(slot, TableChange(group, 0, 0, table))
    slots = np.arange(work.sequences, dtype=np.int64)

    def steps() -> None:
        for position in range(work.context, work.context + STEPS):
            state.upload_buffer.start_step()
            starts, lengths = np.full_like(slots, position), np.ones_like(slots)
            rows = StepRows(state, BLOCK_SIZE, slots, starts, lengths, np.zeros_like(slots), sources=slots)
            posted, hidden = choices.post(slots.tolist(), None), graphs.run(rows)
            if posted is None or hidden is None:
                raise RuntimeError(f"no graph was captured of {work}")
            choices.run(posted, hidden)

    taken = seconds(steps, device, rounds)
    costs = [_cost(decoder, position, 1, work.sequences) for position in range(work.context, work.context + STEPS)]
    floor = sum(max(cost.bytes / known.bandwidth, cost.flops / known.rate) for cost in costs)
    return {
        "name": str(work),
        "sequences": work.sequences,
        "context": work.context,
        "milliseconds": round(1e3 * taken / STEPS, 4),
        "tokens_per_second": round(work.sequences * STEPS / taken, 1),
        "of_bandwidth": round(sum(cost.bytes for cost in costs) / taken / known.bandwidth, 4),
        "of_roofline": round(floor / taken, 4),
    }


@torch.inference_mode()
def prefill(
    decoder: TorchDecoder, known: Limits, tokens: int, chunk: int, rounds: int, device: torch.device
) -> dict[str, Any]:
    """Compute one prompt, `chunk` tokens per step, and return the share of a large product's rate."""
    cache, (table,) = _cache(decoder, [tokens], device)
    backend = TritonBackend(cache)
    positions = torch.arange(tokens, device=device)
    blocks = torch.tensor(table, device=device)
    cells = blocks[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    tables = BlockTables.of([table])
    parts = [slice(start, min(start + chunk, tokens)) for start in range(0, tokens, chunk)]
    batches = [AttentionBatch([p.stop - p.start], [p.stop], tables, cells[p]) for p in parts]

    def prompt() -> Tensor:
        for part, batch in zip(parts, batches, strict=True):
            hidden = decoder(positions[part] % 100, positions[part], backend.begin(batch))
        return decoder.logits(hidden[-1:])

    taken = seconds(prompt, device, rounds)
    multiplied = sum(_cost(decoder, part.start, part.stop - part.start).flops for part in parts)
    return {
        "tokens": tokens,
        "chunk": chunk,
        "milliseconds": round(1e3 * taken, 2),
        "of_rate": round(multiplied / taken / known.rate, 4),
    }


def _captured(
    decoder: TorchDecoder, capture: Capture, cache: KvCache, state: DeviceState, work: Decodes
) -> tuple[DecodeGraphs, SamplingGraphs]:
    """Return the forward graphs and the sampling graphs, captured for this number of sequences only. All sequences
    sample the largest logit.
    """
    most, longest = work.sequences, work.context + STEPS
    backend = TritonBackend(cache)
    graphs = DecodeGraphs(StepParts(decoder, cache), backend, state, capture, max_sequences=most, max_model_len=longest)
    sampler = Sampler(decoder.program.facts.vocab_size, ())
    for slot in range(work.sequences):
        sampler.fill(SlotInit(slot, RequestContext(SamplingParams(temperature=0.0), seed=0), prompt_ids=()))
    choices = SamplingGraphs(decoder, sampler, state, capture)
    for wanted in (*graphs.wanted(), *choices.wanted()):
        if wanted.rows == work.sequences:
            wanted.add()
    return graphs, choices


def _cache(decoder: TorchDecoder, lengths: Sequence[int], device: torch.device) -> tuple[KvCache, list[list[int]]]:
    """Return a cache with random numbers for sequences of these lengths, and their block tables."""
    counts = [-(-length // BLOCK_SIZE) for length in lengths]
    cache = KvCache(decoder.program.facts.attention, sum(counts) + 1, BLOCK_SIZE, decoder.dtype, device)
    for tensor in (*cache.keys, *cache.values):
        tensor.normal_()
    free = iter(range(sum(counts), 0, -1))
    return cache, [[next(free) for _ in range(count)] for count in counts]


def _cost(decoder: TorchDecoder, start: int, rows: int, sequences: int = 1) -> OpCost:
    """Return the minimum bytes and operations of a step in which each sequence computes `rows` tokens from position
    `start`.
    """
    of_each = [
        ScheduledSequence(slot=slot, start=start, token_ids=range(rows), changes=(), sample=True)
        for slot in range(sequences)
    ]
    return total(decoder.program.step_cost(StepPlan(of_each), decoder.dtype.itemsize).values())
